// Shows an answer as it arrives: its tokens with their probabilities, Markdown or plain text. The number of elements is bounded.

import { $, duration, el, shown, toggle } from "./dom.js";
import { Markdown } from "./markdown.js";

const MOST_TOKENS = 4000;
const MOST_CHARACTERS = 200_000;
const MOST_ALTERNATIVES = 10;
const SOON = 40; // milliseconds: what arrives meanwhile is laid out at once
const SHARE = 5; // laying out takes at most a fifth of the time, however long an answer is
const NEAR = 60; // pixels from the end at which a reader follows what arrives

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(logprob > -4.6 ? 1 : 3)} %`;
const visible = (text) => shown(String(text).replaceAll(" ", "␣").replaceAll("\n", "⏎"), 40) || "∅";

export class AnswerView {
  #box = $("answer");
  #scroller = $("conversation");
  #info = $("token");
  #slider = $("token-at");
  #tokens = [];
  #part = 0; // the first token of the part that arrives
  #reasoning = null;
  #text = null;
  #isRich = false;
  #markdown = null;
  #delay = SOON;
  #length = 0;
  #left = 0;
  #waiting = [];
  #timer = 0;

  constructor() {
    const at = (event) => this.#show(Number(event.target.dataset?.index ?? -1));
    this.#box.addEventListener("pointerover", at);
    this.#box.addEventListener("click", at);
    this.#slider.addEventListener("input", () => this.#show(Number(this.#slider.value) - 1));
  }

  // Begins an answer. A rich one is Markdown.
  clear(isRich = false) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#waiting = [];
    this.#box.replaceChildren();
    this.#box.classList.remove("with-probabilities");
    toggle(this.#info, false);
    toggle($("token-box"), false);
    this.#tokens = [];
    this.#part = 0;
    this.#reasoning = this.#text = this.#markdown = null;
    this.#isRich = isRich;
    this.#delay = SOON;
    this.#length = this.#left = 0;
  }

  // Begins a part of the answer, the first one or the rest of one that was cut.
  beginPart() {
    this.flush();
    this.#part = this.#tokens.length;
  }

  // Adds what was read: {text, reasoning, tokens, tops}. `wanted` tells whether probabilities are.
  add(reads, wanted) {
    for (const read of reads) this.#waiting.push([read, wanted]);
    this.#timer ||= setTimeout(() => this.flush(), this.#delay);
  }

  // Shows everything that was added. `isWhole` tells that nothing follows.
  flush(isWhole = false) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const began = performance.now();
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    const follows = scrollHeight - scrollTop - clientHeight < NEAR;
    for (const [read, wanted] of this.#waiting) this.#add(read, wanted);
    this.#waiting = [];
    this.#markdown?.draw(isWhole);
    if (follows) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#delay = Math.max(SOON, SHARE * (performance.now() - began));
  }

  // Shows what tools the answer calls.
  addCalls(calls) {
    if (calls) this.#box.append(el("pre", { class: "head" }, calls));
  }

  #add({ text, reasoning, tokens, tops }, wanted) {
    if (reasoning) this.#addReasoning(reasoning);
    if (wanted && tokens?.length && this.#tokens.length + tokens.length <= MOST_TOKENS && this.#length + text.length <= MOST_CHARACTERS) {
      this.#addTokens(tokens);
      this.#length += text.length;
    } else if (text) {
      this.#addText(text);
    }
    tops?.forEach((top, index) => { // the alternatives of some APIs arrive only at the end of a part
      const token = this.#tokens[this.#part + index];
      if (token) token.top = top;
    });
  }

  #addTokens(tokens) {
    const start = this.#tokens.length;
    this.#tokens.push(...tokens.map(({ text, logprob, top }) => ({ text, logprob, top: top?.slice(0, MOST_ALTERNATIVES) })));
    this.#text = null;
    this.#box.classList.add("with-probabilities");
    this.#box.append(...tokens.map(({ text, logprob }, index) => {
      const level = logprob == null ? 0 : Math.min(4, Math.floor(-logprob * 1.5));
      return el("span", { class: `likely-${level}`, "data-index": start + index }, text);
    }));
    this.#slider.max = this.#tokens.length;
    if (!start) {
      this.#slider.value = 1;
      this.#slider.setAttribute("aria-valuetext", "none chosen");
      toggle($("token-box"), true);
    }
  }

  #addReasoning(text) {
    if (!this.#reasoning) {
      this.#reasoning = document.createTextNode("");
      this.#box.prepend(el("details", { class: "reasoning", open: true }, el("summary", {}, "Reasoning"), this.#reasoning));
    }
    this.#reasoning.appendData(text.slice(0, Math.max(0, MOST_CHARACTERS - this.#reasoning.length)));
  }

  #addText(text) {
    const room = Math.max(0, MOST_CHARACTERS - this.#length);
    if (this.#isRich && !this.#tokens.length) {
      if (!this.#markdown) this.#box.append((this.#markdown = new Markdown()).element);
      this.#markdown.add(text.slice(0, room));
    } else {
      if (!this.#text) this.#box.append((this.#text = document.createTextNode("")));
      this.#text.appendData(text.slice(0, room));
    }
    this.#length += Math.min(room, text.length);
    this.#left += Math.max(0, text.length - room);
    if (this.#left) {
      const more = this.#box.querySelector(".more") ?? this.#box.appendChild(el("span", { class: "more" }));
      more.textContent = ` … and ${this.#left.toLocaleString("en")} characters that are not shown`;
    }
  }

  #show(index) {
    const token = this.#tokens[index];
    if (!token) return;
    this.#box.querySelector(".current")?.classList.remove("current");
    const element = this.#box.querySelector(`[data-index="${index}"]`);
    element.classList.add("current");
    if (document.activeElement === this.#slider) element.scrollIntoView({ block: "nearest" });
    const others = (token.top ?? []).map((other) => el("span", { class: "other" }, el("bdi", {}, visible(other.text)), ` ${percent(other.logprob)}`));
    const own = el("strong", {}, el("bdi", {}, visible(token.text)), token.logprob == null ? "" : ` ${percent(token.logprob)}`);
    this.#info.replaceChildren(own, ...others);
    toggle(this.#info, true);
    this.#slider.value = index + 1;
    const alternatives = others.length ? `, of ${others.map((other) => other.textContent).join(", ")}` : "";
    this.#slider.setAttribute("aria-valuetext", `${index + 1} of ${this.#tokens.length}: ${own.textContent}${alternatives}`);
  }
}

// Shows how many tokens there were, and how long they took.
export function showFigures(outcome, last) {
  const { started, first, pieces } = outcome.opening ?? last;
  const end = last.ended ?? performance.now();
  const generated = outcome.generated ?? (outcome.tokens || null);
  const parts = [];
  if (outcome.prompt != null) parts.push(`${outcome.prompt} prompt tokens`);
  if (generated != null) parts.push(`${generated} generated`);
  if (first) parts.push(`first after ${duration((first - started) / 1000)}`);
  parts.push(duration((end - started) / 1000));
  if (first && generated > 1 && end > first + 20 && pieces.length > 1) parts.push(`${(generated / ((end - first) / 1000)).toFixed(1)} tokens/s`);
  if (outcome.parts > 1) parts.push(`${outcome.parts} requests`);
  if (outcome.finish) parts.push(shown(outcome.finish, 40));
  if (last.stopped) parts.push("stopped");
  $("figures").textContent = parts.join(" · ");
}
