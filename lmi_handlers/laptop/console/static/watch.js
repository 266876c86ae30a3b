// The view of what is running: models, load and the last requests.

import { $, duration } from "./dom.js";
import { growth, parse, percentile, rate, total } from "./metrics.js";
import { showModels, startModels } from "./models.js";
import { Plot } from "./plots.js";
import { showRequests } from "./requests.js";

const WINDOW = 30; // seconds of observations that a percentile is computed from
const KEPT = 150; // seconds
const LATE = 2; // seconds by which what two web workers have read may be apart

const share = (value) => `${(100 * value).toFixed(0)} %`;
const plots = {
  tokens: new Plot("Tokens per second", ["generated", "prompt"], (value) => value.toFixed(value < 10 ? 1 : 0)),
  load: new Plot("Sequences", ["running", "waiting"], (value) => value.toFixed(0)),
  first: new Plot("First token", ["median", "p95"], duration),
  gap: new Plot("Between two tokens", ["median", "p95"], duration),
  memory: new Plot("KV cache in use", [""], share, 1),
  cache: new Plot("Prompt tokens from the cache", [""], share, 1),
};
let samples = [];
let shownFor = null; // the model that the plots are about
let last = null; // what was shown, or will be once the view is open
let isOpen = false;

export function startWatch(changed) {
  $("plots").replaceChildren(...Object.values(plots).map((plot) => plot.element));
  startModels(changed);
}

export function openWatch(open) {
  isOpen = open;
  if (open && last) draw();
}

// Takes what the server has sent, and shows it if the view is open. `chosen` is the model that the plots are about.
export function showState(state, chosen, restarted) {
  if (restarted || chosen?.name !== shownFor) forget();
  shownFor = chosen?.name ?? null;
  const several = state.server.has_several_models;
  if (!several || state.measured === shownFor) measure({ time: state.time, series: parse(state.metrics, several)(shownFor) });
  last = { state, chosen };
  if (isOpen) draw();
}

function draw() {
  const { state, chosen } = last;
  for (const plot of Object.values(plots)) plot.draw();
  showModels(state, chosen);
  showRequests(state);
  const { version, worker, workers } = state.server;
  $("server").textContent = `lmi-handlers ${version} · ${workers} web ${workers === 1 ? "worker" : "workers"} · answered by ${worker}`;
}

function forget() {
  samples = [];
  for (const plot of Object.values(plots)) plot.clear();
}

function measure(now) {
  if (samples.at(-1)?.time > now.time + LATE) forget(); // the clock was set back
  const before = samples.at(-1);
  if (before && now.time <= before.time) return;
  samples = [...samples, now].filter(({ time }) => time > now.time - KEPT);
  if (!before) return;
  const start = samples.findLast(({ time }) => time <= now.time - WINDOW) ?? samples[0];
  const pair = (name) => [percentile(start, now, name, 0.5), percentile(start, now, name, 0.95)];
  plots.tokens.add(now.time, [rate(before, now, "vllm:generation_tokens_total"), rate(before, now, "vllm:prompt_tokens_total")]);
  plots.load.add(now.time, [total(now.series, "vllm:num_requests_running"), total(now.series, "vllm:num_requests_waiting")]);
  plots.first.add(now.time, pair("vllm:time_to_first_token_seconds"));
  plots.gap.add(now.time, pair("vllm:inter_token_latency_seconds"));
  plots.memory.add(now.time, [total(now.series, "vllm:kv_cache_usage_perc")]);
  const prompts = growth(start, now, "vllm:prompt_tokens_total");
  plots.cache.add(now.time, [prompts ? Math.min(1, growth(start, now, "vllm:prompt_tokens_cached_total") / prompts) : null]);
}
