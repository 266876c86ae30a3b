// Follows the server: asks for its state every few seconds, one request at a time, for as long as the page is open.

import { fetchJson } from "./connection.js";

const [CALM, BUSY, HIDDEN] = [5000, 1000, 60_000]; // milliseconds between two polls
const MOST_REQUESTS = 100;
const LATE = 5; // seconds by which the clocks of two answers may differ

const isState = (answer) => Array.isArray(answer?.models) && Array.isArray(answer.requests) && typeof answer.metrics === "string" && typeof answer.server?.run === "string";

export class Follower {
  #model;
  #took;
  #failed;
  #timer = 0;
  #polls = false;
  #again = false;
  #run = null;
  #requests = [];

  // `model()` names the model whose metrics are shown. `took(state, restarted)` gets each state and tells whether the
  // next is wanted soon, `failed(error)` why there is none. `state.measured` is the model that was named when it was asked.
  constructor(model, took, failed) {
    this.#model = model;
    this.#took = took;
    this.#failed = failed;
    document.addEventListener("visibilitychange", () => this.soon(document.hidden ? HIDDEN : 0));
    addEventListener("online", () => this.soon(0));
  }

  soon(delay) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.poll(), delay);
  }

  async poll() {
    this.#again = this.#polls;
    if (this.#polls) return;
    this.#polls = true;
    clearTimeout(this.#timer);
    const model = this.#model();
    const { state, error } = await this.#ask(model);
    this.#polls = false;
    const wait = Math.min(Math.max(CALM, error?.retryAfter ?? 0), HIDDEN);
    this.soon(document.hidden ? HIDDEN : this.#again ? 0 : wait);
    if (error) this.#failed(error);
    else if (this.#take(state, model) && !document.hidden && !this.#again) this.soon(BUSY);
  }

  async #ask(model) {
    const query = new URLSearchParams({ model, since: this.#requests[0]?.time ?? 0 });
    try {
      const state = await fetchJson(`/console/data/state?${query}`, { signal: AbortSignal.timeout(20_000) });
      return isState(state) ? { state } : { error: new Error("what answers is not this server, but something in front of it") };
    } catch (error) {
      return { error: Object.assign(error, { unreachable: error.status === undefined }) };
    }
  }

  #take(state, model) {
    const restarted = this.#run !== null && this.#run !== state.server.run;
    this.#run = state.server.run;
    const known = restarted ? [] : this.#requests.filter(({ time }) => time < state.time + LATE); // the clock may be set back
    const all = new Map([...state.requests, ...known].map((each) => [`${each.worker} ${each.time} ${each.request_id}`, each]));
    this.#requests = [...all.values()].sort((one, other) => other.time - one.time).slice(0, MOST_REQUESTS);
    return this.#took({ ...state, measured: model, requests: this.#requests }, restarted);
  }
}
