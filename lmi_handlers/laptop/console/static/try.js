// The view in which requests are written, sent, stopped and looked at.

import { AnswerView, showFigures } from "./answer.js";
import { answered, answeredTo, edit, focusInput, forgetOpen, isComplete, modelEmbeds, notesOn, open, requestFor, showAsked, startCompose, take, useApi, useModel as composeFor } from "./compose.js";
import { DIALECTS } from "./dialects/all.js";
import { $, copy, say, tabs, toggle } from "./dom.js";
import { exchange, Outcome } from "./exchange.js";
import { spelt, startMessages } from "./messages.js";
import { parametersAreValid, resetParameters, showParameters, suggestTemperature } from "./parameters.js";
import { Wire } from "./wire.js";

const PAINTED = 200; // milliseconds between two updates of the figures
const MOST_SAID = 1000;
const NEAR = 60; // pixels from the end of the conversation

let api = DIALECTS[0];
let running = null; // stops the request that runs
let answer;
let apiTabs;
let wire;
let onAnswered = () => {};
let cleared = 0; // how often another conversation was begun or opened
let said = ""; // the last answer

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

// Sends these requests, [api, request], one after the other. The last one's answer is shown.
async function sendIn(requests, finish) {
  running = new AbortController();
  busy(true);
  unmark();
  try {
    for (const [target, request] of requests) {
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
  answer.clear(request.mode === "chat" || target.embeds);
  said = "";
  toggle($("live"), true);
  $("said").textContent = "";
  toggle($("failure"), false);
  let painted = 0;
  const before = cleared;
  const record = await exchange(target, request, outcome, running.signal, {
    began: (head) => {
      wire.keep(target, head);
      if (cleared === before) answer.beginPart();
    },
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
  answer.flush(true);
  answer.addCalls(calls);
  said = outcome.text;
  document.body.classList.toggle("unanswered", outcome.error !== "" || !(outcome.text || calls));
  showFigures(outcome, record);
  $("failure").textContent = outcome.error.slice(0, 2000);
  toggle($("failure"), outcome.error !== "");
  $("said").textContent = outcome.error || record.stopped ? "" : `The answer is complete: ${(outcome.text || calls).slice(0, MOST_SAID)}`;
}

function run() {
  if (running || !isComplete()) return;
  converse(requestFor(api));
}

// Asks for another answer to the same messages.
function again() {
  if (!running && answeredTo().length && parametersAreValid()) converse(requestFor(api, answeredTo()));
}

function converse(request) {
  if (request.mode === "prompt") return sendIn([[api, request]], () => {});
  const before = cleared;
  const giveBack = take(request);
  return sendIn([[api, request]], (target, _, outcome, { stopped }) => {
    if (cleared !== before) return;
    const { text, reasoning, error } = outcome;
    const calls = stopped ? [] : outcome.calls; // one may not be whole
    if (!error && (text || calls.length)) answered({ text, reasoning, calls });
    else giveBack();
  });
}

// The conversation stays as it is, to be sent again. The API that is open comes last, because its answer is shown.
function runAll() {
  if (running || !isComplete()) return;
  const requests = [...DIALECTS.filter((each) => each !== api && !each.embeds), api].map((each) => [each, requestFor(each)]);
  if (requests[0][1].mode === "chat") showAsked(requests.at(-1)[1]);
  sendIn(requests, (target, request, outcome, record) => {
    if (!record.stopped) apiTabs.button(target.id).classList.add(outcome.error ? "failed" : "answered");
  });
}

function unmark() {
  for (const { id } of DIALECTS) apiTabs.button(id).classList.remove("failed", "answered");
}

// The focus stays where the next message is written. Esc stops an answer from there.
function busy(is) {
  const focused = document.activeElement;
  $("answer").setAttribute("aria-busy", String(is));
  $("send").disabled = $("send-all").disabled = is;
  toggle($("send"), !is);
  toggle($("stop"), is);
  const { scrollHeight, scrollTop, clientHeight } = $("conversation");
  document.body.classList.toggle("running", is); // shows the answer's buttons, or hides them
  if (scrollHeight - scrollTop - clientHeight < NEAR) $("conversation").scrollTop = scrollHeight;
  if ([document.body, $("stop"), $("send"), $("prompt")].includes(focused) || !focused.isConnected) focusInput();
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
  suggestTemperature(model?.temperature);
  wire.edited();
  if (modelEmbeds() && !api.embeds) {
    apiTabs.select("embeddings");
    openApi("embeddings");
  }
  refresh();
}

function openApi(id) {
  api = DIALECTS.find((each) => each.id === id);
  useApi(api);
  refresh();
}

export const refreshTry = refresh;

export function startTry(onEnd) {
  onAnswered = onEnd;
  answer = new AnswerView();
  wire = new Wire(requestFor);
  apiTabs = tabs($("apis"), DIALECTS.map(({ id, name }) => [id, name]), $("api-panel"), openApi);
  apiTabs.select(api.id);
  startMessages({ again, edit: (message) => running || edit(message) });
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
  $("clear").addEventListener("click", () => begin(() => open()));
  $("forget").addEventListener("click", () => begin(forgetOpen));
  $("kept").addEventListener("change", ({ target }) => begin(() => open(target.value)));
  $("copy").addEventListener("click", ({ target }) => copy(target, $("answer"), said || $("answer").textContent));
  $("again").addEventListener("click", again);
  refresh();
}

// Moves the focus to where one types, unless that opens a keyboard over half of the page.
export function openTry() {
  if (!matchMedia("(pointer: coarse)").matches) focusInput();
}

// Begins or opens a conversation.
function begin(opens) {
  stop();
  cleared += 1;
  opens();
  unmark();
  wire.clear();
  answer.clear();
  $("figures").textContent = "";
  toggle($("failure"), false);
  refresh();
  focusInput();
}
