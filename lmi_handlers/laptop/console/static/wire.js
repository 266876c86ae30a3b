// Shows requests and their answers as they were on the wire, and requests as code.

import { LANGUAGES } from "./code.js";
import { hasKey, toSend } from "./connection.js";
import { DIALECTS } from "./dialects/all.js";
import { $, bytes, copy, duration, el, say, tabs, toggle } from "./dom.js";
import { ExplainView } from "./explain.js";

const MOST_TEXT = 200_000;
const MOST_HEX = 16_384;
const MOST_EACH = 20_000; // bytes of a body beside others
const SOON = 100; // milliseconds

const headLines = (headers) => headers.map(([name, value]) => `${name}: ${value}`).join("\n");
const requestHead = ({ method, path, headers }) => `${method} ${path}\n${headLines(Object.entries(headers))}`;
const responseHead = ({ status, statusText, headers }) => `${status} ${statusText}\n${headLines(headers)}`;

function times({ pieces, size, started, first, ended, stopped, broken }) {
  const parts = [`${bytes(size)} in ${pieces.length} ${pieces.length === 1 ? "piece" : "pieces"}`];
  if (first) parts.push(`first after ${duration((first - started) / 1000)}`);
  parts.push(ended ? `${stopped ? "stopped" : broken ? "broken off" : "all"} after ${duration((ended - started) / 1000)}` : "arriving");
  return parts.join(" · ");
}

// The views are built once. What changes is only their text, so that focus, selection and scrolling stay.
export class Wire {
  #records = new Map(); // by the id of the API
  #edited = new Set(); // ids of the APIs that would be sent something else now
  #chosen = "sent";
  #api = DIALECTS[0];
  #requestFor;
  #views;
  #timer = 0;

  // `requestFor(api)` returns the request that would be sent now.
  constructor(requestFor) {
    this.#requestFor = requestFor;
    this.#views = { sent: new BodyView("sent"), received: new BodyView("received"), code: new CodeView(() => this.refresh()), all: new AllView(), explained: new ExplainView() };
    const names = [["sent", "Sent"], ["received", "Received"], ["all", "All APIs"], ["explained", "Explained"], ["code", "Code"]];
    const list = tabs($("wire-tabs"), names, $("wire-panel"), (id) => this.#open(id));
    list.select(this.#chosen);
    this.#open(this.#chosen);
  }

  #open(id) {
    this.#chosen = id;
    $("wire-panel").replaceChildren(this.#views[id].element);
    this.refresh();
  }

  show(api) {
    this.#api = api;
    this.refresh();
  }

  // Keeps what is on the wire in an API.
  keep(api, record) {
    if (this.#records.get(api.id) !== record) this.#edited.delete(api.id);
    this.#records.set(api.id, record);
    this.soon();
  }

  // Another request would be sent now.
  edited() {
    for (const { id } of DIALECTS) this.#edited.add(id);
    this.soon();
  }

  clear() {
    this.#records.clear();
    this.refresh();
  }

  soon() {
    this.#timer ||= setTimeout(() => this.refresh(), SOON);
  }

  refresh() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const [api, record] = [this.#api, this.#records.get(this.#api.id)];
    if (this.#chosen === "code") this.#views.code.show(api, this.#requestFor);
    else if (this.#chosen === "explained") this.#views.explained.show(api, this.#requestFor);
    else if (this.#chosen === "all") this.#views.all.show(this.#records);
    else if (this.#chosen === "received") this.#views.received.show(record?.status ? times(record) : "Nothing has been received yet.", record?.status ? responseHead(record) : null, record?.pieces ?? []);
    else this.#showSent(api, record);
  }

  #showSent(api, record) {
    const isSent = record && !this.#edited.has(api.id);
    const request = isSent ? null : this.#requestFor(api);
    const sent = isSent ? record.sent : toSend(api.path(request), api.body(request));
    const data = new TextEncoder().encode(sent.body);
    this.#views.sent.show(`${bytes(data.length)} body${isSent ? "" : ", not sent yet"}`, requestHead(sent), [data]);
  }
}

class BodyView {
  #figures = el("p", { class: "figures" });
  #head;
  #body;
  #note = el("p", { class: "note" });
  #hex;
  #last = [];
  #pieces = null; // of the body that is shown as text
  #decoder;
  #count; // pieces that are shown
  #left; // bytes that may still be shown

  constructor(kind) {
    this.#head = el("pre", { class: "head", tabindex: "0", "aria-label": kind === "sent" ? "Request head" : "Response head" });
    this.#body = el("pre", { class: "wire-text", "data-wire": kind, tabindex: "0", "aria-label": kind === "sent" ? "Body sent" : "Body received" });
    this.#hex = el("input", { type: "checkbox", id: `hex-${kind}`, onchange: () => this.show(...this.#last) });
    const choice = el("label", { class: "check" }, this.#hex, "Bytes in hexadecimal");
    this.element = el("div", {}, el("div", { class: "row" }, this.#figures, el("span", { class: "grow" }), choice), this.#head, this.#body, this.#note);
  }

  // `pieces` is the same list as before, with more in it, while an answer arrives.
  show(figures, head, pieces) {
    this.#last = [figures, head, pieces];
    say(this.#figures, figures);
    say(this.#head, head ?? "");
    const limit = this.#hex.checked ? MOST_HEX : MOST_TEXT;
    if (this.#hex.checked || head === null) {
      this.#pieces = null;
      say(this.#body, head === null ? "" : hex(first(pieces, limit)));
    } else {
      this.#showText(pieces);
    }
    const size = pieces.reduce((sum, piece) => sum + piece.length, 0);
    say(this.#note, size > limit ? `The first ${bytes(limit)} of ${bytes(size)}.` : "");
    for (const each of [this.#head, this.#body]) toggle(each, head !== null);
  }

  // Appends what is new. Decoding and laying out all of it again would make each piece slower than the one before.
  #showText(pieces) {
    const grows = pieces === this.#pieces;
    if (!grows) [this.#pieces, this.#decoder, this.#count, this.#left] = [pieces, new TextDecoder(), 0, MOST_TEXT];
    let text = "";
    for (; this.#count < pieces.length && this.#left > 0; this.#count++) {
      const piece = pieces[this.#count].subarray(0, this.#left);
      text += this.#decoder.decode(piece, { stream: true });
      this.#left -= piece.length;
    }
    if (!grows) say(this.#body, text);
    else if (this.#body.lastChild) this.#body.lastChild.appendData(text);
    else this.#body.append(text);
  }
}

// The last request of each API beside the others.
class AllView {
  #none = el("p", { class: "note" }, "Nothing has been sent yet. “Send to each API” sends the same request in each.");
  #articles = DIALECTS.map(({ id, name }) => ({ id, article: new Article(name) }));
  element = el("div", {}, this.#none, el("div", { class: "all" }, ...this.#articles.map(({ article }) => article.element)));

  show(records) {
    toggle(this.#none, !records.size);
    for (const { id, article } of this.#articles) article.show(records.get(id));
  }
}

class Article {
  #parts;
  #none = el("p", { class: "note" }, "There was no answer.");
  #shown = ""; // which record, and how much of its answer

  constructor(name) {
    const pre = (label, own) => el("pre", { class: own, tabindex: "0", "aria-label": `${name}: ${label}` });
    this.#parts = [pre("request head", "head"), pre("body sent", "wire-text"), pre("response head", "head"), pre("body received", "wire-text")];
    this.element = el("article", {}, el("h3", {}, name), ...this.#parts, this.#none);
  }

  show(record) {
    toggle(this.element, record !== undefined);
    const key = record ? `${record.started} ${record.size} ${record.status}` : "";
    if (key === this.#shown) return;
    this.#shown = key;
    if (!record) return;
    const text = (pieces, size) => new TextDecoder().decode(first(pieces, MOST_EACH)) + (size > MOST_EACH ? ` … (${bytes(size)})` : "");
    const { sent, status, pieces, size } = record;
    const body = new TextEncoder().encode(sent.body);
    const texts = [requestHead(sent), text([body], body.length), ...(status ? [responseHead(record), text(pieces, size)] : ["", ""])];
    texts.forEach((each, index) => say(this.#parts[index], each));
    for (const part of this.#parts.slice(2)) toggle(part, status > 0);
    toggle(this.#none, status === 0);
  }
}

class CodeView {
  #language;
  #code = el("pre", { class: "wire-text", "data-wire": "code", tabindex: "0", "aria-label": "Code" });
  #note = el("p", { class: "note" });
  #text = "";

  constructor(changed) {
    this.#language = el("select", { id: "language", "aria-label": "Language", onchange: changed }, ...Object.keys(LANGUAGES).map((name) => el("option", { value: name }, name)));
    const button = el("button", { type: "button", class: "quiet", onclick: () => { changed(); copy(button, this.#code, this.#text); } }, "Copy");
    this.element = el("div", {}, el("div", { class: "row" }, this.#language, el("span", { class: "grow" }), button), this.#code, this.#note);
  }

  show(api, requestFor) {
    this.#text = LANGUAGES[this.#language.value](api, requestFor, hasKey());
    say(this.#code, this.#text.slice(0, MOST_TEXT));
    say(this.#note, this.#text.length > MOST_TEXT ? `The first ${bytes(MOST_TEXT)} of ${bytes(this.#text.length)}. “Copy” copies all of it.` : "");
  }
}

// The first bytes of a body, at most `limit`.
function first(pieces, limit) {
  const found = new Uint8Array(Math.min(limit, pieces.reduce((sum, piece) => sum + piece.length, 0)));
  let at = 0;
  for (const piece of pieces) {
    if (at === found.length) break;
    const part = piece.subarray(0, found.length - at);
    found.set(part, at);
    at += part.length;
  }
  return found;
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
