// The messages of a conversation, but for the answer that is arriving.

import { $, copy, el, shown } from "./dom.js";
import { markdown } from "./markdown.js";

const MOST_MESSAGES = 100;
const MOST_SHOWN = 50_000; // characters of a message

const made = new WeakMap(); // the element of each message

export const spelt = (calls) => calls.filter(Boolean).map(({ name, arguments: given }) => `${shown(name)}(${given.slice(0, MOST_SHOWN)})`).join("\n");

let actions = { edit: () => {}, again: () => {} };

// `edit(message)` writes one anew, and `again()` asks for another last answer.
export function startMessages(wanted) {
  actions = wanted;
  $("conversation").addEventListener("click", ({ target }) => {
    const button = target.closest(".code .copy");
    if (button) copy(button, button.closest(".code").querySelector("code"));
  });
}

// Shows these messages. `edited` and those after it will be replaced.
export function showMessages(messages, edited) {
  const from = messages.includes(edited) ? messages.indexOf(edited) : messages.length;
  $("messages").replaceChildren(...messages.map((message, index) => {
    if (!made.has(message)) made.set(message, messageView(message));
    made.get(message).classList.toggle("replaced", index >= from);
    return made.get(message);
  }).slice(-MOST_MESSAGES));
}

function messageView(message) {
  const { role, content, images = [], calls, call, reasoning } = message;
  const isAnswer = role === "assistant";
  const text = content.slice(0, MOST_SHOWN);
  const more = content.length > MOST_SHOWN ? ` … and ${content.length - MOST_SHOWN} more characters` : "";
  const body = el("div", { class: "text" }, isAnswer ? markdown(text) : text, more, ...images.map((url) => el("img", { src: url, alt: "Image sent" })));
  return el("div", { class: `message ${role === "user" ? "user" : "assistant"}` },
    el("h2", { class: "role" }, call ? `result of ${shown(call.name, 40)}` : role),
    reasoning ? el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), reasoning.slice(0, MOST_SHOWN)) : null,
    body,
    calls ? el("pre", { class: "head" }, spelt(calls)) : null,
    el("div", { class: "actions" },
      role === "user" ? el("button", { type: "button", class: "quiet", onclick: () => actions.edit(message) }, "Edit") : null,
      content ? el("button", { type: "button", class: "quiet", onclick: (event) => copy(event.target, body, content) }, "Copy") : null,
      isAnswer ? el("button", { type: "button", class: "quiet again", onclick: () => actions.again() }, "Regenerate") : null));
}
