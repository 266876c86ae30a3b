// Starts the page, follows the server and switches between the views.

import { forgetConfiguration, openConfiguration, startConfiguration } from "./configuration.js";
import { fetchJson, useKey } from "./connection.js";
import { $, el, shown, toggle } from "./dom.js";
import { useDocument } from "./parameters.js";
import { refreshTry, startTry, useModel } from "./try.js";
import { isBusy, pillOf, showState, startWatch } from "./watch.js";

const VIEWS = ["try", "watch", "configuration"];
const [CALM, BUSY, HIDDEN] = [5000, 1000, 60_000]; // milliseconds between two polls
const SOON = 300;

let state = null;
let chosen = "";
let described = "";
let timer = 0;
let polling = false;
let lastCause = "";

const view = () => (VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "try");
const model = () => state?.models.find(({ name }) => name === chosen) ?? null;

function showView() {
  for (const name of VIEWS) {
    toggle($(`view-${name}`), name === view());
    const link = document.querySelector(`nav a[href="#${name}"]`);
    if (name === view()) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view() === "configuration") configuration();
  if (view() === "watch" && state) showState(state, model());
}

function configuration() {
  if (state) openConfiguration(chosen, state.server.has_several_models).catch(needKey);
}

function needKey() {
  say("The server needs its API key. It is kept in the memory of this page only.");
  document.body.classList.add("locked");
  setStatus("locked", "warn");
}

function say(text) {
  $("notice").textContent = text;
  toggle($("notice"), text !== "");
}

function setStatus(text, kind) {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").className = `pill ${kind}`;
}

function chooseModel() {
  const names = state.models.map(({ name }) => name);
  if (!names.includes(chosen)) chosen = (state.models.find((each) => each.state === "ready") ?? state.models[0])?.name ?? "";
  const several = names.length > 1;
  toggle($("model-name"), !several);
  toggle($("model-choice"), several);
  $("model-name").textContent = shown(chosen, 60) || "no model";
  document.title = `${shown(chosen, 60)} · lmi-handlers`;
  const select = $("model-select");
  if (several && JSON.stringify([...select.options].map(({ value }) => value)) !== JSON.stringify(names)) {
    select.replaceChildren(...names.map((name) => el("option", { value: name }, shown(name, 60))));
  }
  select.value = chosen;
}

function take(latest) {
  state = latest;
  document.body.classList.remove("locked");
  say("");
  chooseModel();
  const current = model();
  if (current) {
    setStatus(isBusy(current) ? shown(current.phase, 60) : current.state, pillOf(current.state).slice(5));
    lastCause = current.state === "ready" ? "" : current.phase;
  } else {
    setStatus("no models", "idle");
  }
  useModel(current, state.server);
  showState(state, current);
  if (current && described !== current.name && current.generates && current.engines.length) describe(current.name);
}

async function describe(name) {
  described = name;
  try {
    useDocument(await fetchJson(`/openapi.json${state.server.has_several_models ? `?model_name=${encodeURIComponent(name)}` : ""}`));
    refreshTry();
  } catch {
    described = "";
  }
}

async function poll() {
  if (polling) return;
  polling = true;
  clearTimeout(timer);
  try {
    take(await fetchJson("/console/data/state", { signal: AbortSignal.timeout(20_000) }));
  } catch (error) {
    if (error.status === 401) needKey();
    else {
      setStatus("no answer", "bad");
      const cause = lastCause ? ` The last that it said: ${shown(lastCause, 1000)}` : "";
      say(error.status ? `The server answered: ${shown(error.message, 500)}` : `The server does not answer. It may have ended: its log says why.${cause}`);
    }
  }
  polling = false;
  const wait = document.hidden ? HIDDEN : state?.models.some(isBusy) ? BUSY : CALM;
  timer = setTimeout(poll, wait);
}

function pollSoon(delay = SOON) {
  clearTimeout(timer);
  timer = setTimeout(poll, delay);
}

startTry(() => pollSoon(1100)); // by then, the server's last state is old enough to be read again
startWatch(() => pollSoon(1100));
startConfiguration();
addEventListener("hashchange", () => {
  showView();
  $("main").focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", () => pollSoon(document.hidden ? HIDDEN : 0));
$("model-select").addEventListener("change", (event) => {
  chosen = event.target.value;
  forgetConfiguration();
  take(state);
  if (view() === "configuration") configuration();
});
$("key").addEventListener("input", () => {
  useKey($("key").value);
  refreshTry();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  poll();
  if (view() === "configuration") configuration();
});
$("key").addEventListener("change", () => poll());
showView();
poll();
