// Shows Markdown as elements, also while it is still being written. `marked` finds its parts, `remend` ends those that have
// only begun, and neither writes HTML: the elements are made here, and HTML in the text is shown as text.

import { el } from "./dom.js";
import { Lexer } from "./vendor/marked.js";
import remend from "./vendor/remend.js";

const MOST_BLOCK = 10_000; // characters of a block that has marks; some texts take a time that grows with their square
const MOST_OPEN = 50_000; // characters of a block that may go on
const MOST_DEPTH = 12;
const MOST_TAGS = 20_000; // elements
// Lists and quotations within each other: each level is read again for those within it.
const DEEP = /^[ \t]*(?:(?:>[ \t]?){12}|(?:[-*+][ \t]+){12}|(?:\d+[.)][ \t]+){12})|^[ \t]{48}[ \t]*(?:[-*+]|\d+[.)])[ \t]/m;
// A line that may become a list, a rule, a fence or the underline of a heading: what it will be is not known yet.
const UNDECIDED = /(^|\n)[ \t]*(?:[-=*+_`~#>|: \t]+|\d+[.)]?)$/;
const FENCED = /^ {0,3}(?:```|~~~)/;

export class Markdown {
  element = el("div", { class: "markdown" });
  #tail = el("div", {}); // the last block, which may go on
  #open = ""; // its source
  #tags = 0;

  constructor() {
    this.element.append(this.#tail);
  }

  add(text) {
    this.#open += text.replaceAll("\r", ""); // the two ends of a line may arrive apart
  }

  // Lays out what was added. Only the last block changes, and of that only what is another.
  draw(isWhole = false) {
    const ready = isWhole ? this.#open : this.#open.slice(0, this.#open.lastIndexOf("\n") + 1);
    const ended = endedIn(ready, isWhole);
    this.#tail.before(...ended.flatMap((source) => this.#elements(source)));
    this.#open = this.#open.slice(ended.join("").length);
    if (this.#open.length > MOST_OPEN) {
      this.#tail.before(plain(this.#open));
      this.#open = "";
    }
    const fresh = el("div", {});
    if (this.#open.trim()) fresh.append(...elementsOf(isMarked(this.#open) ? remend(this.#open.replace(UNDECIDED, "")) : this.#open));
    patch(this.#tail, fresh);
  }

  #elements(source) {
    const elements = this.#tags < MOST_TAGS ? elementsOf(source) : [plain(source)];
    for (const each of elements) this.#tags += 1 + (each.getElementsByTagName?.("*").length ?? 0);
    return elements;
  }
}

// Returns the whole text as an element.
export function markdown(text) {
  const whole = new Markdown();
  whole.add(text);
  whole.draw(true);
  return whole.element;
}

const isMarked = (source) => source.length <= MOST_BLOCK && !DEEP.test(source);
const plain = (source) => el("p", {}, source.replace(/\n+$/, ""));

// Returns the sources of the blocks that have ended. A list may go on after an empty line.
function endedIn(source, isWhole) {
  if (DEEP.test(source)) return isWhole || source.length > MOST_BLOCK ? [source] : [];
  const sources = new Lexer().blockTokens(source, []).map(({ type, raw }) => ({ type, raw }));
  if (!source.startsWith(sources.map(({ raw }) => raw).join(""))) return isWhole ? [source] : [];
  const last = isWhole ? sources.length : sources.findLastIndex(({ type }) => type !== "space");
  return sources.slice(0, Math.max(0, last)).map(({ raw }) => raw);
}

function elementsOf(source) {
  if (!FENCED.test(source) && !isMarked(source)) return [plain(source)];
  try {
    return new Lexer().lex(source).flatMap((token) => blockOf(token, 0));
  } catch (error) {
    if (error instanceof RangeError) return [plain(source)]; // too deep
    throw error;
  }
}

const blocksOf = (tokens, depth) => tokens.flatMap((token) => blockOf(token, depth));
const spansOf = (tokens, depth) => (tokens ?? []).flatMap((token) => spanOf(token, depth));

function blockOf(token, depth) {
  const { type, raw, tokens } = token;
  if (depth > MOST_DEPTH) return plain(raw);
  if (type === "space" || type === "def") return [];
  if (type === "paragraph") return el("p", {}, ...spansOf(tokens, depth));
  if (type === "heading") return el(`h${Math.min(6, token.depth + 2)}`, {}, ...spansOf(tokens, depth));
  if (type === "code") return codeOf(token);
  if (type === "list") return el(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== 1 ? token.start : null }, ...token.items.map((item) => itemOf(item, depth + 1)));
  if (type === "blockquote") return el("blockquote", {}, ...blocksOf(tokens, depth + 1));
  if (type === "table") return tableOf(token, depth);
  if (type === "hr") return el("hr");
  if (type === "text") return tokens ? spansOf(tokens, depth) : [raw];
  return plain(raw); // HTML
}

function itemOf({ task, checked, tokens }, depth) {
  const box = task ? el("span", { role: "img", "aria-label": checked ? "done" : "to do" }, checked ? "☑ " : "☐ ") : null;
  return el("li", { class: task ? "task" : null }, box, ...blocksOf(tokens.filter(({ type }) => type !== "checkbox"), depth));
}

function codeOf({ text, lang }) {
  const copy = el("button", { type: "button", class: "quiet copy" }, "Copy");
  return el("div", { class: "code" }, el("div", { class: "row" }, el("span", { class: "role" }, (lang ?? "").split(/\s/)[0].slice(0, 30) || "code"), el("span", { class: "grow" }), copy),
    el("pre", { tabindex: "0" }, el("code", {}, text)));
}

function tableOf({ header, rows, align }, depth) {
  const cells = (tag, row) => row.map(({ tokens }, index) => el(tag, { class: align[index] ? `to-${align[index]}` : null }, ...spansOf(tokens, depth)));
  return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" }, el("table", {},
    el("thead", {}, el("tr", {}, ...cells("th", header))), el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells("td", row))))));
}

const TAGS = { strong: "strong", em: "em", del: "del" };

function spanOf(token, depth) {
  const { type, raw, text, tokens } = token;
  if (depth > MOST_DEPTH) return [raw];
  if (TAGS[type]) return el(TAGS[type], {}, ...spansOf(tokens, depth + 1));
  if (type === "codespan") return el("code", {}, text);
  if (type === "br") return el("br");
  if (type === "link") return linkTo(token.href, spansOf(tokens, depth + 1));
  if (type === "image") return linkTo(token.href, [`Image: ${text || token.href}`]); // not loaded: that would tell another host what is read
  if (type === "escape") return [text];
  if (type === "text") return tokens ? spansOf(tokens, depth + 1) : [raw];
  return [raw]; // HTML
}

// Only addresses that do nothing but open a page or a letter are links.
function linkTo(href, content) {
  const isSafe = /^(https?:\/\/|mailto:)/i.test(href) && URL.canParse(href);
  return isSafe ? el("a", { href, target: "_blank", rel: "noopener noreferrer", title: href.slice(0, 300) }, ...content) : el("span", {}, ...content);
}

// Makes the content of `old` that of `fresh`. Nodes that are the same stay, and with them the focus, a selection and scrolling.
function patch(old, fresh) {
  const nodes = [...fresh.childNodes];
  while (old.childNodes.length > nodes.length) old.lastChild.remove();
  nodes.forEach((node, index) => {
    const at = old.childNodes[index];
    if (!at) old.append(node);
    else if (!at.cloneNode(false).isEqualNode(node.cloneNode(false)) && !(isText(at) && isText(node))) at.replaceWith(node);
    else if (!isText(at)) patch(at, node);
    else if (node.data.startsWith(at.data)) at.appendData(node.data.slice(at.length));
    else at.data = node.data;
  });
}

const isText = (node) => node.nodeType === Node.TEXT_NODE;
