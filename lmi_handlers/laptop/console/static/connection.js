// How the page talks to its server. The key is kept in memory only: a reload forgets it.

let key = "";

export function useKey(text) {
  key = text;
}

export const hasKey = () => key !== "";

// Tells whether a key can be sent in a header.
export const isKey = (text) => /^[\x21-\x7e]*$/.test(text);

export function address(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI);
}

function headers(own) {
  return key ? { ...own, Authorization: `Bearer ${key}` } : own;
}

export class Refused extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // milliseconds
  }
}

// Fetches JSON. Throws `Refused` with the cause that the server gives.
export async function fetchJson(path, { method = "GET", body, signal } = {}) {
  const given = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await fetch(address(path), { method, body: body && JSON.stringify(body), headers: headers(given), signal, cache: "no-store", credentials: "omit" });
  const text = await response.text();
  if (!response.ok) throw new Refused(response.status, causeIn(text) || `status ${response.status}`, 1000 * (Number(response.headers.get("retry-after")) || 0));
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function causeIn(text) {
  try {
    const { message, error } = JSON.parse(text);
    return String(message ?? error?.message ?? (typeof error === "string" ? error : ""));
  } catch {
    return text.trimStart().startsWith("<") ? "" : text.slice(0, 500); // a proxy's page says less than its status
  }
}

const MOST_BYTES = 4_000_000;

// What is about to be sent, as the record of an exchange has it.
export function toSend(path, body) {
  const url = address(path);
  return { method: "POST", path: url.pathname + url.search, headers: { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer ******" } : {}) }, body: JSON.stringify(body) };
}

// Sends a request and records what goes over the wire. `onHead(record)` is called once, `onBytes(bytes, record)` for each
// piece of the answer. `broken` says that the connection broke, or that there was none.
export async function send(path, body, signal, onHead, onBytes) {
  const sent = toSend(path, body);
  const record = { sent, started: performance.now(), status: 0, headers: [], pieces: [], size: 0, first: null, ended: null, stopped: false, broken: false };
  const asked = (promise) => promise.catch((error) => {
    record.stopped = error.name === "AbortError";
    record.broken = !record.stopped;
    return null;
  });
  const response = await asked(fetch(address(path), { method: "POST", body: sent.body, headers: headers({ "Content-Type": "application/json" }), signal, credentials: "omit" }));
  if (response) {
    Object.assign(record, { status: response.status, statusText: response.statusText, headers: [...response.headers], type: response.headers.get("content-type") ?? "" });
    onHead(record);
    const reader = response.body?.getReader();
    for (let piece = reader && (await asked(reader.read())); piece && !piece.done; piece = await asked(reader.read())) {
      record.first ??= performance.now();
      record.size += piece.value.length;
      if (record.size <= MOST_BYTES) record.pieces.push(piece.value);
      onBytes(piece.value, record);
    }
  }
  record.ended = performance.now();
  return record;
}
