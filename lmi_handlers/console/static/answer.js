// Shows an answer as it arrives: its tokens with their probabilities, or plain text. The number of elements is bounded.

import { $, el, shown } from "./dom.js";

const MOST_TOKENS = 4000;
const MOST_CHARACTERS = 200_000;

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(logprob > -4.6 ? 1 : 3)} %`;

export class AnswerView {
  #box = $("answer");
  #info = $("token");
  #tokens = [];
  #tail = null;
  #length = 0;
  #left = 0;
  #at = -1;

  constructor() {
    const at = (event) => this.#show(Number(event.target.dataset?.index ?? -1));
    this.#box.addEventListener("pointerover", at);
    this.#box.addEventListener("click", at);
    this.#box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || !this.#tokens.length) return;
      event.preventDefault();
      this.#show(Math.min(Math.max(this.#at + step, 0), this.#tokens.length - 1));
    });
  }

  clear() {
    this.#box.replaceChildren();
    this.#box.classList.remove("with-probabilities");
    this.#info.hidden = true;
    this.#tokens = [];
    this.#tail = null;
    this.#length = this.#left = 0;
    this.#at = -1;
  }

  // Appends text, as tokens if their probabilities are wanted.
  append(text, tokens, wanted) {
    const follows = this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight < 40;
    if (wanted && tokens?.length && this.#tokens.length + tokens.length <= MOST_TOKENS && this.#length < MOST_CHARACTERS) {
      this.#box.classList.add("with-probabilities");
      const start = this.#tokens.length;
      this.#tokens.push(...tokens);
      this.#tail = null;
      this.#box.append(...tokens.map((token, index) => this.#element(token, start + index)));
      this.#length += text.length;
    } else {
      this.#appendText(text);
    }
    if (follows) this.#box.scrollTop = this.#box.scrollHeight;
  }

  reasoning(text) {
    let box = this.#box.querySelector(".reasoning");
    if (!box) this.#box.prepend((box = el("span", { class: "reasoning" })));
    if (box.textContent.length < MOST_CHARACTERS) box.append(text);
  }

  // The alternatives of tokens that arrive only at the end.
  alternatives(tops) {
    tops.forEach((top, index) => {
      if (this.#tokens[index]) this.#tokens[index].top = top;
    });
  }

  #appendText(text) {
    const room = Math.max(0, MOST_CHARACTERS - this.#length);
    if (!this.#tail) this.#box.append((this.#tail = document.createTextNode("")));
    this.#tail.appendData(text.slice(0, room));
    this.#length += Math.min(room, text.length);
    this.#left += Math.max(0, text.length - room);
    if (this.#left) {
      const more = this.#box.querySelector(".more") ?? this.#box.appendChild(el("span", { class: "more" }));
      more.textContent = ` … and ${this.#left.toLocaleString("en")} characters that are not shown`;
    }
  }

  #element({ text, logprob }, index) {
    const level = logprob === undefined ? 0 : Math.min(4, Math.floor(-logprob * 1.5));
    return el("span", { class: `likely-${level}`, "data-index": index }, text.slice(0, 2000));
  }

  #show(index) {
    const token = this.#tokens[index];
    if (!token) return;
    this.#box.querySelector(".current")?.classList.remove("current");
    this.#box.querySelector(`[data-index="${index}"]`)?.classList.add("current");
    this.#at = index;
    const others = (token.top ?? []).slice(0, 10).map((other) => el("span", { class: "other" }, el("bdi", {}, visible(other.text)), ` ${percent(other.logprob)}`));
    const own = el("strong", {}, el("bdi", {}, visible(token.text)), token.logprob === undefined ? "" : ` ${percent(token.logprob)}`);
    this.#info.replaceChildren(own, ...others);
    this.#info.hidden = false;
  }
}

const visible = (text) => shown(text.replaceAll(" ", "␣").replaceAll("\n", "⏎"), 40) || "∅";
