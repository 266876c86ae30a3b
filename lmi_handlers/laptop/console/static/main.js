// Starts the page, shows what the server says of itself, and switches between the views.

import { forgetConfiguration, openConfiguration, startConfiguration } from "./configuration.js";
import { fetchJson, hasKey, isKey, useKey } from "./connection.js";
import { $, el, say, shown, toggle } from "./dom.js";
import { Follower } from "./follow.js";
import { isBusy, pillOf } from "./models.js";
import { useDocument } from "./parameters.js";
import { openTry, refreshTry, startTry, useModel } from "./try.js";
import { openWatch, showState, startWatch } from "./watch.js";

const VIEWS = ["try", "watch", "configuration"];
const CHANGED = 1100; // milliseconds until the server's last state is old enough to be read again

let state = null;
let chosen = "";
let described = "";
let lastCause = "";

const view = () => (VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "try");
const model = () => state?.models.find(({ name }) => name === chosen) ?? null;
const follower = new Follower(() => chosen, take, complain);

function showView() {
  for (const name of VIEWS) {
    toggle($(`view-${name}`), name === view());
    const link = document.querySelector(`nav a[href="#${name}"]`);
    if (name === view()) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  openWatch(view() === "watch");
  if (view() === "configuration") configuration();
}

function configuration() {
  if (state) openConfiguration(chosen, state.server.has_several_models).catch(needKey);
}

function needKey() {
  notice(hasKey() ? "The server does not accept this API key." : "The server needs its API key. It is kept in the memory of this page only.");
  document.body.classList.add("locked");
  setStatus("locked", "warn");
}

function notice(text) {
  say($("notice"), text);
  toggle($("notice"), text !== "");
}

function setStatus(text, kind) {
  say($("status"), text);
  $("status").className = `pill ${kind}`;
}

function complain(error) {
  if (error.status === 401) return needKey();
  setStatus("no answer", "bad");
  const cause = lastCause ? ` The last that it said: ${shown(lastCause, 1000)}` : "";
  notice(error.unreachable ? `The server does not answer. It may have ended: its log says why.${cause}` : `The state of the server is not known: ${shown(error.message, 500)}`);
}

function chooseModel() {
  const names = state.models.map(({ name }) => name);
  if (!names.includes(chosen)) chosen = (state.models.find((each) => each.state === "ready") ?? state.models[0])?.name ?? "";
  const several = names.length > 1;
  toggle($("model-name"), !several);
  toggle($("model-choice"), several);
  say($("model-name"), shown(chosen, 60) || "no model");
  document.title = `${shown(chosen, 60)} · lmi-handlers`;
  const select = $("model-select");
  if (several && JSON.stringify([...select.options].map(({ value }) => value)) !== JSON.stringify(names)) {
    select.replaceChildren(...names.map((name) => el("option", { value: name }, shown(name, 60))));
  }
  select.value = chosen;
}

// Shows a state, and tells whether the next is wanted soon.
function take(latest, restarted) {
  state = latest;
  const before = chosen;
  document.body.classList.remove("locked");
  notice("");
  chooseModel();
  if (restarted) {
    described = "";
    forgetConfiguration();
  }
  const current = model();
  if (current) {
    setStatus(isBusy(current) ? shown(current.phase, 60) : current.state, pillOf(current.state).slice(5));
    lastCause = current.state === "ready" ? "" : current.phase;
  } else {
    setStatus("no models", "idle");
  }
  if (view() === "configuration") configuration();
  useModel(current, state.server);
  showState(state, current, restarted);
  if (current && described !== current.name && (current.generates || current.capabilities) && current.engines.length) describe(current.name);
  return state.models.some(isBusy) || (chosen !== before && state.server.has_several_models);
}

async function describe(name) {
  described = name;
  try {
    const openapi = await fetchJson(`/openapi.json${state.server.has_several_models ? `?model_name=${encodeURIComponent(name)}` : ""}`);
    if (described !== name) return; // another model was chosen meanwhile
    useDocument(openapi);
    refreshTry();
  } catch {
    if (described === name) described = "";
  }
}

startTry(() => follower.soon(CHANGED));
startWatch(() => follower.soon(CHANGED));
startConfiguration();
addEventListener("hashchange", () => {
  showView();
  $("main").focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the view is in the address
  $("main").focus();
});
$("model-select").addEventListener("change", (event) => {
  chosen = event.target.value;
  take(state, false);
  follower.poll();
});
const typedKey = () => $("key").value.trim();
$("key").addEventListener("input", () => $("key").setCustomValidity(isKey(typedKey()) ? "" : "A key has only ASCII characters, and no spaces."));
$("key").addEventListener("change", () => {
  useKey(isKey(typedKey()) ? typedKey() : "");
  refreshTry();
  follower.poll();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  follower.poll();
});
showView();
if (view() === "try") openTry();
follower.poll();
