// Shows a request and its answer as they were on the wire.

import { bytes, duration, el } from "./dom.js";

const MOST_TEXT = 200_000;
const MOST_HEX = 16_384;

const headLines = (headers) => Object.entries(headers).map(([name, value]) => `${name}: ${value}`).join("\n");

function bodyView(data, kind, asHex) {
  const text = asHex ? hex(data.subarray(0, MOST_HEX)) : new TextDecoder().decode(data.subarray(0, MOST_TEXT));
  const limit = asHex ? MOST_HEX : MOST_TEXT;
  return [
    el("pre", { class: "wire-text", "data-wire": kind, tabindex: "0", "aria-label": kind === "sent" ? "Body sent" : "Body received" }, text),
    data.length > limit ? el("p", { class: "note" }, `The first ${bytes(limit)} of ${bytes(data.length)}.`) : null,
  ].filter(Boolean);
}

export function sentView({ sent }, asHex) {
  const data = new TextEncoder().encode(sent.body);
  return [
    el("p", { class: "figures" }, `${bytes(data.length)} body`),
    el("pre", { class: "head", tabindex: "0", "aria-label": "Request head" }, `${sent.method} ${sent.path}\n${headLines(sent.headers)}`),
    ...bodyView(data, "sent", asHex),
  ];
}

export function receivedView(record, asHex) {
  if (!record?.status) return [el("p", { class: "note" }, "Nothing has been received yet.")];
  const { status, statusText, headers, pieces, size, started, first, ended, stopped } = record;
  const times = [`${bytes(size)} in ${pieces.length} ${pieces.length === 1 ? "piece" : "pieces"}`, first ? `first after ${duration((first - started) / 1000)}` : "", ended ? `${stopped ? "stopped" : "all"} after ${duration((ended - started) / 1000)}` : "arriving"];
  return [
    el("p", { class: "figures" }, times.filter(Boolean).join(" · ")),
    el("pre", { class: "head", tabindex: "0", "aria-label": "Response head" }, `${status} ${statusText ?? ""}\n${headers.map(([name, value]) => `${name}: ${value}`).join("\n")}`),
    ...bodyView(joined(pieces), "received", asHex),
  ];
}

function joined(pieces) {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const codes = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes}  ${row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
}
