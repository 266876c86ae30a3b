// Shows what the server would do with the request that would be sent now.

import { fetchJson } from "./connection.js";
import { el, say, toggle } from "./dom.js";

const MOST_TEXT = 200_000;

export class ExplainView {
  #text = el("pre", { class: "wire-text", "data-wire": "explained", tabindex: "0", "aria-label": "Explanation" });
  #note = el("p", { class: "note" });
  #shown = ""; // the question whose answer is shown or awaited
  element = el("div", {}, this.#note, this.#text);

  show(api, requestFor) {
    const request = requestFor(api);
    const [route] = api.path(request).split("?"); // as the server knows it, whatever a proxy puts before it
    const question = JSON.stringify({ route, body: api.body(request) });
    if (question === this.#shown) return;
    this.#shown = question;
    this.#ask(question);
  }

  async #ask(question) {
    let [text, note] = ["", "Nothing is generated for this."];
    try {
      text = JSON.stringify(await fetchJson("/explain", { method: "POST", body: JSON.parse(question) }), null, 2);
    } catch (error) {
      note = `The server would refuse this request: ${error.message}`;
    }
    if (question !== this.#shown) return; // another request would be sent by now
    if (!text) this.#shown = ""; // to ask again: the server may only be loading its model
    say(this.#note, note);
    say(this.#text, text.slice(0, MOST_TEXT));
    toggle(this.#text, text !== "");
  }
}
