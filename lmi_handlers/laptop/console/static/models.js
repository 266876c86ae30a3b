// The list of models with their engines and adapters, and the forms that load and unload them.

import { fetchJson } from "./connection.js";
import { $, bytes, duration, el, shown, toggle } from "./dom.js";
import { parse, total } from "./metrics.js";

const MOST_MODELS = 200; // that are shown
const BUSY = ["starting", "pending", "loading", "waking"];
const STATES = { ready: "good", stalled: "bad", failed: "bad", draining: "warn", sleeping: "idle", unloading: "idle" };
export const pillOf = (state) => `pill ${STATES[state] ?? "warn"}`;
export const isBusy = (model) => BUSY.includes(model.state);

let chosen = null; // the model that adapters are loaded for
let drawn = "";
let onChanged = () => {};

export function startModels(changed) {
  onChanged = changed;
  $("load-model").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = { url: $("load-url").value, synchronous: false, ...($("load-name").value ? { model_name: $("load-name").value } : {}) };
    manage(() => fetchJson("/models", { method: "POST", body: given }), event.target);
  });
  $("load-adapter").addEventListener("submit", (event) => {
    event.preventDefault();
    manage(() => fetchJson(adaptersOf(chosen), { method: "POST", body: { name: $("adapter-name").value, src: $("adapter-source").value } }), event.target);
  });
}

const adaptersOf = (model) => (model.url === null ? "/adapters" : `/models/${encodeURIComponent(model.name)}/adapters`);

async function manage(change, form = null) {
  const note = $("managed");
  note.textContent = "…";
  note.className = "note";
  toggle(note, true);
  try {
    const answer = await change();
    note.textContent = shown(answer.status ?? answer, 500);
    form?.reset();
  } catch (error) {
    note.textContent = error.message.slice(0, 1000);
    note.className = "failure";
  }
  onChanged();
}

function unload(name, path) {
  if (confirm(`Unload ${name}? Requests for it are refused from then on.`)) manage(() => fetchJson(path, { method: "DELETE" }));
}

// Shows the models. `model` is the one that is chosen.
export function showModels(state, model) {
  chosen = model;
  toggle($("load-model"), state.server.manages);
  toggle($("load-adapter"), Boolean(model?.manages_adapters));
  const models = state.models.slice(0, MOST_MODELS);
  const seriesOf = parse(state.metrics, state.server.has_several_models);
  const views = models.map((each) => ({ each, series: seriesOf(each.name) }));
  const key = JSON.stringify([views.map(({ each, series }) => [{ ...each, seconds: isBusy(each) ? each.seconds : 0, engines: each.engines.map(({ state: own, phase }) => [own, phase]) }, load(series), isBusy(each) ? downloaded(series) : 0]), state.server.manages]);
  if (key === drawn) return;
  drawn = key;
  const focused = $("models").contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  $("models").replaceChildren(...views.map(({ each, series }) => modelView(each, state, series)));
  if (state.models.length > MOST_MODELS) $("models").append(el("p", { class: "note" }, `The first ${MOST_MODELS} of ${state.models.length} models.`));
  if (!state.models.length) $("models").append(el("p", { class: "note" }, "There are no models."));
  if (focused !== null) ([...$("models").querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === focused) ?? $("main")).focus({ preventScroll: true });
}

function factsOf(model, series) {
  const { capabilities: can } = model;
  const facts = can ? [`backend ${can.backend}`, can.device && `on ${can.device}`, can.dtype, `${can.max_model_len.toLocaleString("en")} tokens`, `${can.max_num_seqs} sequences at a time`] : [];
  if (model.memory) facts.push(bytes(model.memory));
  if (model.url) facts.push(shown(model.url, 80));
  if (can) facts.push(load(series));
  return facts.filter(Boolean).map((fact) => shown(fact)).join(" · ");
}

const load = (series) => `${total(series, "vllm:num_requests_running")} running, ${total(series, "vllm:num_requests_waiting")} waiting`;
const downloaded = (series) => total(series, "lmi_download_bytes");

function modelView(each, state, series) {
  const button = (label, name, path, sign) => el("button", { type: "button", class: "quiet", "aria-label": label, onclick: () => unload(name, path) }, sign);
  const name = shown(each.name);
  return el("article", { class: "model" },
    el("div", { class: "row" }, el("h3", { class: "name" }, name), el("span", { class: pillOf(each.state) }, each.state),
      el("span", { class: "figures" }, factsOf(each, series)), el("span", { class: "grow" }),
      state.server.manages && each.state !== "unloading" ? button(`Unload model ${name}`, name, `/models/${encodeURIComponent(each.name)}`, "Unload") : null),
    each.state === "ready" ? null : el("p", { class: each.state === "failed" || each.state === "stalled" ? "failure" : "phase" }, shown(each.phase, 1000), isBusy(each) ? ` · ${duration(each.seconds)}` : ""),
    isBusy(each) ? progress(series) : null,
    each.engines.length > 1 ? el("ul", { class: "engines", "aria-label": "Engines" }, ...each.engines.map((engine, index) => el("li", {}, `Engine ${index} `, el("span", { class: pillOf(engine.state) }, engine.state), engine.state === "ready" ? "" : ` ${shown(engine.phase, 300)}`))) : null,
    each.adapters.length ? el("ul", { class: "adapters", "aria-label": "Adapters" }, ...each.adapters.map((adapter) => adapterView(each, adapter, button))) : null,
  );
}

function adapterView(model, { name, pinned }, button) {
  const own = shown(name, 60);
  return el("li", {}, el("bdi", {}, own), " ", el("span", { class: "figures" }, pinned ? "pinned" : "loaded"),
    model.manages_adapters ? button(`Unload adapter ${own}`, own, `${adaptersOf(model)}/${encodeURIComponent(name)}`, "×") : null);
}

// The phases of a load with their durations, and how much of the model has been downloaded.
function progress(series) {
  const size = total(series, "lmi_download_size_bytes");
  const done = downloaded(series);
  const phases = [...(series.get("lmi_load_seconds") ?? [])].filter(([, seconds]) => seconds > 0);
  return el("div", { class: "progress" },
    size ? el("progress", { max: size, value: done, "aria-label": "Downloaded" }) : el("progress", { "aria-label": "Loading" }),
    size ? el("p", { class: "figures" }, `${bytes(done)} of ${bytes(size)}`) : null,
    el("ol", { class: "phases" }, ...phases.map(([phase, seconds]) => el("li", {}, `${phase} `, el("b", {}, duration(seconds))))));
}
