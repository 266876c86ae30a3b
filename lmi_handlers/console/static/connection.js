// How the page talks to its server. The key is kept in memory only: a reload forgets it.

let key = "";

export function useKey(text) {
  key = text;
}

export const hasKey = () => key !== "";

export function address(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI);
}

function headers(own) {
  return key ? { ...own, Authorization: `Bearer ${key}` } : own;
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Fetches JSON. Throws `Refused` with the cause that the server gives.
export async function fetchJson(path, { method = "GET", body, signal } = {}) {
  const given = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await fetch(address(path), { method, body: body && JSON.stringify(body), headers: headers(given), signal, cache: "no-store", credentials: "omit" });
  const text = await response.text();
  if (!response.ok) throw new Refused(response.status, causeIn(text) || (response.status === 401 ? "the server needs its API key" : `status ${response.status}`));
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function causeIn(text) {
  try {
    const { message, error } = JSON.parse(text);
    return message ?? error?.message ?? (typeof error === "string" ? error : "");
  } catch {
    return text.slice(0, 500);
  }
}

const MOST_BYTES = 4_000_000;

// Sends a request and records what goes over the wire. `onBytes(bytes, record)` is called for each piece of the answer.
export async function send(path, body, signal, onHead, onBytes) {
  const url = address(path);
  const text = JSON.stringify(body);
  const sent = { method: "POST", path: url.pathname + url.search, headers: { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer ******" } : {}) }, body: text };
  const record = { sent, started: performance.now(), status: 0, headers: [], pieces: [], size: 0, first: null, ended: null, stopped: false };
  try {
    const response = await fetch(url, { method: "POST", body: text, headers: headers({ "Content-Type": "application/json" }), signal, credentials: "omit" });
    record.status = response.status;
    record.statusText = response.statusText;
    record.headers = [...response.headers];
    record.type = response.headers.get("content-type") ?? "";
    onHead(record);
    const reader = response.body?.getReader();
    for (let piece = await reader?.read(); piece && !piece.done; piece = await reader.read()) {
      record.first ??= performance.now();
      record.size += piece.value.length;
      if (record.size <= MOST_BYTES) record.pieces.push(piece.value);
      onBytes(piece.value, record);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw Object.assign(error, { record });
    record.stopped = true;
  } finally {
    record.ended = performance.now();
  }
  return record;
}
