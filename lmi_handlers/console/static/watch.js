// The view of what is running: models, load and the last requests.

import { fetchJson } from "./connection.js";
import { $, bytes, duration, el, shown, toggle } from "./dom.js";
import { growth, parse, percentile, rate, total } from "./metrics.js";
import { Plot } from "./plots.js";

const WINDOW = 30; // seconds of observations that a percentile is computed from
const BUSY = ["starting", "pending", "loading", "waking"];
const STATES = { ready: "good", stalled: "bad", failed: "bad", draining: "warn", sleeping: "idle", unloading: "idle" };
export const pillOf = (state) => `pill ${STATES[state] ?? "warn"}`;
export const isBusy = (model) => BUSY.includes(model.state);

const plots = {
  tokens: new Plot("Tokens per second", ["generated", "prompt"], (value) => value.toFixed(value < 10 ? 1 : 0)),
  load: new Plot("Sequences", ["running", "waiting"], (value) => value.toFixed(0)),
  first: new Plot("First token", ["median", "95th percentile"], duration),
  gap: new Plot("Between two tokens", ["median", "95th percentile"], duration),
  memory: new Plot("KV cache in use", [""], (value) => `${(100 * value).toFixed(0)} %`, 1),
  cache: new Plot("Prompt tokens from the cache", [""], (value) => `${(100 * value).toFixed(0)} %`, 1),
};
let samples = [];
let model = null;
let drawn = "";
let onChanged = () => {};

export function startWatch(changed) {
  onChanged = changed;
  $("plots").replaceChildren(...Object.values(plots).map((plot) => plot.element));
  $("load-model").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = { url: $("load-url").value, synchronous: false, ...($("load-name").value ? { model_name: $("load-name").value } : {}) };
    manage(() => fetchJson("/models", { method: "POST", body: given }), event.target);
  });
  $("load-adapter").addEventListener("submit", (event) => {
    event.preventDefault();
    const path = model.url === null ? "/adapters" : `/models/${encodeURIComponent(model.name)}/adapters`;
    manage(() => fetchJson(path, { method: "POST", body: { name: $("adapter-name").value, src: $("adapter-source").value } }), event.target);
  });
}

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

// Shows the state that the server has sent. `chosen` is the model that the plots are about.
export function showState(state, chosen) {
  if (chosen?.name !== model?.name) {
    samples = [];
    for (const plot of Object.values(plots)) plot.clear();
  }
  model = chosen;
  const series = parse(state.metrics, state.server.has_several_models ? chosen?.name ?? null : null);
  showModels(state, series);
  measure({ time: state.time, series });
  showRequests(state);
  const { version, worker, workers } = state.server;
  $("server").textContent = `lmi-handlers ${version} · ${workers} web ${workers === 1 ? "worker" : "workers"} · answered by ${worker}`;
}

function measure(now) {
  const last = samples.at(-1);
  if (last && now.time <= last.time) return;
  samples.push(now);
  samples = samples.filter(({ time }) => time > now.time - WINDOW - 120);
  if (!last) return;
  const start = samples.findLast(({ time }) => time <= now.time - WINDOW) ?? samples[0];
  const pair = (name) => [percentile(start, now, name, 0.5), percentile(start, now, name, 0.95)];
  plots.tokens.add(now.time, [rate(last, now, "vllm:generation_tokens_total"), rate(last, now, "vllm:prompt_tokens_total")]);
  plots.load.add(now.time, [total(now.series, "vllm:num_requests_running"), total(now.series, "vllm:num_requests_waiting")]);
  plots.first.add(now.time, pair("vllm:time_to_first_token_seconds"));
  plots.gap.add(now.time, pair("vllm:inter_token_latency_seconds"));
  plots.memory.add(now.time, [total(now.series, "vllm:kv_cache_usage_perc")]);
  const prompts = growth(start, now, "vllm:prompt_tokens_total");
  plots.cache.add(now.time, [prompts ? Math.min(1, growth(start, now, "vllm:prompt_tokens_cached_total") / prompts) : null]);
}

function showModels(state, series) {
  const key = JSON.stringify([state.models.map((each) => ({ ...each, seconds: isBusy(each) ? each.seconds : 0, engines: each.engines.map(({ state: own, phase }) => [own, phase]) })), state.server.manages, isBusy(model ?? {}) ? state.time : 0]);
  toggle($("load-model"), state.server.manages);
  toggle($("load-adapter"), Boolean(model?.manages_adapters));
  if (key === drawn) return;
  drawn = key;
  const focused = $("models").contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  $("models").replaceChildren(...state.models.slice(0, 200).map((each) => modelView(each, state, series)));
  if (!state.models.length) $("models").append(el("p", { class: "note" }, "There are no models."));
  if (focused !== null) ([...$("models").querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === focused) ?? $("main")).focus({ preventScroll: true });
}

function modelView(each, state, series) {
  const { capabilities: can } = each;
  const facts = can ? [`backend ${can.backend}`, can.device && `on ${can.device}`, can.dtype, `${can.max_model_len.toLocaleString("en")} tokens`, `${can.max_num_seqs} sequences at a time`] : [];
  if (each.memory) facts.push(bytes(each.memory));
  if (each.url) facts.push(shown(each.url, 80));
  return el("article", { class: "model" },
    el("div", { class: "row" }, el("h3", { class: "name" }, shown(each.name)), el("span", { class: pillOf(each.state) }, each.state),
      el("span", { class: "figures" }, facts.filter(Boolean).join(" · ")), el("span", { class: "grow" }),
      state.server.manages && each.state !== "unloading" ? el("button", { type: "button", class: "quiet", "aria-label": `Unload model ${shown(each.name)}`, onclick: () => manage(() => fetchJson(`/models/${encodeURIComponent(each.name)}`, { method: "DELETE" })) }, "Unload") : null),
    each.state === "ready" ? null : el("p", { class: each.state === "failed" || each.state === "stalled" ? "failure" : "phase" }, shown(each.phase, 1000), isBusy(each) ? ` · ${duration(each.seconds)}` : ""),
    isBusy(each) ? progress(state, series) : null,
    each.engines.length > 1 ? el("ul", { class: "engines" }, ...each.engines.map((engine, index) => el("li", {}, `Engine ${index} `, el("span", { class: pillOf(engine.state) }, engine.state), engine.state === "ready" ? "" : ` ${shown(engine.phase, 300)}`))) : null,
    each.adapters.length ? el("ul", { class: "adapters", "aria-label": "Adapters" }, ...each.adapters.map((name) => el("li", {}, el("bdi", {}, shown(name, 60)), each.manages_adapters ? el("button", { type: "button", class: "quiet", "aria-label": `Unload adapter ${shown(name, 60)}`, onclick: () => unloadAdapter(each, name) }, "×") : null))) : null,
  );
}

function unloadAdapter(each, name) {
  const path = each.url === null ? "/adapters" : `/models/${encodeURIComponent(each.name)}/adapters`;
  manage(() => fetchJson(`${path}/${encodeURIComponent(name)}`, { method: "DELETE" }));
}

// The phases of a load with their durations, and how much of the model has been downloaded.
function progress(state, series) {
  const size = total(series, "lmi_download_size_bytes");
  const done = total(series, "lmi_download_bytes");
  const phases = [...(series.get("lmi_load_seconds") ?? [])].filter(([, seconds]) => seconds > 0);
  return el("div", { class: "progress" },
    size ? el("progress", { max: size, value: done, "aria-label": "Downloaded" }) : el("progress", { "aria-label": "Loading" }),
    el("ol", { class: "phases" }, ...phases.map(([phase, seconds]) => el("li", {}, `${phase} `, el("b", {}, duration(seconds))))));
}

const COLUMNS = ["Time", "Status", "Path", "Model", "Tokens", "First token", "Total", "Phases", "Outcome"];
const PHASES = ["tokenize", "queue", "prefill", "decode", "format"];

function showRequests({ requests, server }) {
  const workers = new Set(requests.map(({ worker }) => worker)).size;
  $("requests-note").textContent = requests.length ? `${requests.length} from ${workers} web ${workers === 1 ? "worker" : "workers"}${server.keeps_prompts ? "" : ", without prompts"}` : "none yet";
  const columns = server.keeps_prompts ? [...COLUMNS, "Prompt"] : COLUMNS;
  const slowest = Math.max(...requests.map(({ total_ms: time }) => time), 1);
  $("requests").replaceChildren(
    el("caption", { class: "sr" }, "The last requests, the newest first"),
    el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...requests.map((request) => requestRow(request, slowest, server))),
  );
}

function requestRow(request, slowest, server) {
  const failed = request.error !== null || request.status >= 400;
  const timed = PHASES.filter((phase) => request.phases[phase] !== undefined);
  const spelt = timed.map((phase) => `${phase} ${duration(request.phases[phase] / 1000)}`).join(", ");
  return el("tr", { class: failed ? "failed" : "", title: `${shown(request.request_id, 256)}, worker ${request.worker}` },
    el("td", {}, new Date(request.time * 1000).toLocaleTimeString("en-GB")),
    el("td", {}, el("span", { class: `pill ${failed ? "bad" : "good"}` }, request.status)),
    el("td", { class: "mono" }, shown(request.path, 60)),
    el("td", {}, el("bdi", {}, shown(request.model, 40))),
    el("td", { class: "number" }, `${request.prompt_tokens}${request.cached_tokens ? ` (${request.cached_tokens} cached)` : ""} → ${request.generated_tokens}`),
    el("td", { class: "number" }, request.first_token_ms === null ? "–" : duration(request.first_token_ms / 1000)),
    el("td", { class: "number" }, duration(request.total_ms / 1000)),
    el("td", {}, phaseBar(request.phases, timed, slowest, spelt)),
    el("td", { class: "outcome" }, request.error === null ? shown(request.finish_reasons.join(", "), 60) : shown(request.error, 300)),
    server.keeps_prompts ? el("td", { class: "outcome" }, el("bdi", {}, shown(request.prompt ?? "", 120))) : null);
}

function phaseBar(phases, timed, slowest, spelt) {
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of [["viewBox", "0 0 120 10"], ["class", "phase-bar"], ["role", "img"], ["aria-label", spelt || "no phases"]]) bar.setAttribute(name, value);
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = spelt;
  bar.append(title);
  let x = 0;
  for (const phase of timed) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const width = (120 * phases[phase]) / slowest;
    for (const [name, value] of [["x", x.toFixed(2)], ["y", 1], ["height", 8], ["width", Math.max(width, 0.4).toFixed(2)], ["class", `phase-${PHASES.indexOf(phase)}`]]) rect.setAttribute(name, value);
    bar.append(rect);
    x += width;
  }
  return bar;
}
