// The view in which requests are written, sent, stopped and looked at.

import { AnswerView, showFigures } from "./answer.js";
import { answered, clear, focusInput, isComplete, notesOn, requestFor, spelt, startCompose, useModel as composeFor } from "./compose.js";
import { DIALECTS } from "./dialects/all.js";
import { $, say, tabs, toggle } from "./dom.js";
import { exchange, Outcome } from "./exchange.js";
import { resetParameters, showParameters } from "./parameters.js";
import { Wire } from "./wire.js";

const PAINTED = 200; // milliseconds between two updates of the figures
const MOST_SAID = 1000;

let api = DIALECTS[0];
let running = null; // stops the request that runs
let answer;
let apiTabs;
let wire;
let onAnswered = () => {};
let cleared = 0; // how often the conversation was

// Shows what depends on the API, the mode or the model.
function refresh() {
  const request = requestFor(api);
  $("route").textContent = `POST ${api.path(request)}`;
  document.body.classList.toggle("prompting", request.mode === "prompt");
  showNotes(request);
  showParameters(api, request, () => wire.edited());
  wire.show(api);
}

function showNotes(request) {
  const notes = notesOn(api, request);
  say($("api-note"), notes);
  toggle($("api-note"), notes !== "");
}

function edited() {
  showNotes(requestFor(api));
  wire.edited();
}

// Sends the request in these APIs, one after the other. The last one's answer is shown.
async function sendIn(targets, finish) {
  if (running || !isComplete()) return;
  running = new AbortController();
  busy(true);
  unmark();
  try {
    for (const [target, request] of targets.map((each) => [each, requestFor(each)])) {
      const outcome = new Outcome();
      const record = await ask(target, request, outcome);
      finish(target, request, outcome, record);
      if (record.stopped) break;
    }
  } finally {
    running = null;
    busy(false);
  }
  wire.refresh();
  onAnswered();
}

async function ask(target, request, outcome) {
  answer.clear();
  $("said").textContent = "";
  toggle($("failure"), false);
  let painted = 0;
  const before = cleared;
  const record = await exchange(target, request, outcome, running.signal, {
    began: (head) => wire.keep(target, head),
    arrived: (reads, current) => {
      if (cleared !== before) return;
      answer.add(reads, request.probabilities);
      if (performance.now() - painted < PAINTED) return;
      painted = performance.now();
      showFigures(outcome, current);
      wire.soon();
    },
  });
  if (cleared === before) {
    wire.keep(target, record);
    show(outcome, record);
  }
  return record;
}

// Shows how a request has ended.
function show(outcome, record) {
  const calls = spelt(outcome.calls);
  if (calls) answer.add([{ text: `${outcome.text ? "\n" : ""}${calls}` }], false);
  answer.flush();
  showFigures(outcome, record);
  $("failure").textContent = outcome.error.slice(0, 2000);
  toggle($("failure"), outcome.error !== "");
  $("said").textContent = outcome.error || record.stopped ? "" : `The answer is complete: ${(outcome.text || calls).slice(0, MOST_SAID)}`;
}

function run() {
  const before = cleared;
  return sendIn([api], (target, request, outcome, record) => {
    const calls = record.stopped ? [] : outcome.calls; // one may not be whole
    if (cleared === before && request.mode === "chat" && !outcome.error && (outcome.text || calls.length)) answered(request, outcome.text, calls);
  });
}

// The conversation stays as it is, to be sent again. The API that is open comes last, because its answer is shown.
function runAll() {
  return sendIn([...DIALECTS.filter((each) => each !== api), api], (target, request, outcome, record) => {
    if (!record.stopped) apiTabs.button(target.id).classList.add(outcome.error ? "failed" : "answered");
  });
}

function unmark() {
  for (const { id } of DIALECTS) apiTabs.button(id).classList.remove("failed", "answered");
}

function busy(is) {
  $("answer").setAttribute("aria-busy", String(is));
  $("send").disabled = $("send-all").disabled = is;
  toggle($("send"), !is);
  toggle($("stop"), is);
  if (is) $("stop").focus({ preventScroll: true });
  else if (document.activeElement === document.body || document.activeElement === $("stop")) focusInput();
}

const stop = () => running?.abort();

// Enter sends what is in the message, and Ctrl+Enter any field. Shift+Enter begins a line, as Enter does on a phone. An Enter
// that confirms what an input method has composed does neither (some browsers tell it by the key code only).
function isSending({ key, keyCode, isComposing, shiftKey, ctrlKey, metaKey, target }) {
  if (key !== "Enter" || isComposing || keyCode === 229) return false;
  return ctrlKey || metaKey || (target === $("prompt") && !shiftKey && !matchMedia("(pointer: coarse)").matches);
}

// Takes over the model that is chosen.
export function useModel(model, server) {
  if (!composeFor(model, server)) return;
  wire.edited();
  refresh();
}

export const refreshTry = refresh;

export function startTry(onEnd) {
  onAnswered = onEnd;
  answer = new AnswerView();
  wire = new Wire(requestFor);
  apiTabs = tabs($("apis"), DIALECTS.map(({ id, name }) => [id, name]), $("api-panel"), (id) => {
    api = DIALECTS.find((each) => each.id === id);
    refresh();
  });
  apiTabs.select(api.id);
  startCompose(edited);
  $("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  $("compose").addEventListener("change", (event) => {
    if (["mode", "stream"].includes(event.target.name || event.target.id)) refresh();
  });
  $("compose").addEventListener("keydown", (event) => {
    if (!isSending(event)) return;
    event.preventDefault();
    run();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
  });
  $("stop").addEventListener("click", stop);
  $("send-all").addEventListener("click", runAll);
  $("parameters").addEventListener("submit", (event) => event.preventDefault());
  $("reset").addEventListener("click", () => {
    resetParameters();
    wire.edited();
    refresh();
  });
  $("clear").addEventListener("click", () => {
    stop();
    cleared += 1;
    clear();
    unmark();
    wire.clear();
    answer.clear();
    $("figures").textContent = "";
    toggle($("failure"), false);
    refresh();
    focusInput();
  });
  refresh();
}
