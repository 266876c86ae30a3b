// The table of the last requests. A row that is there stays, so that a reader does not lose its place.

import { $, duration, el, shown, svg } from "./dom.js";
import { nice } from "./plots.js";

const COLUMNS = ["Time", "Status", "Path", "Model", "Tokens", "First token", "Total", "Phases", "Outcome", "Request"];
const PHASES = ["tokenize", "queue", "prefill", "decode", "format"];
const WIDTH = 120;

let body = null;
let drawnFor = null; // whether there are prompts
let longest = 0; // milliseconds that fill a bar
let rows = new Map();

export function showRequests({ requests, server }) {
  const workers = new Set(requests.map(({ worker }) => worker)).size;
  $("requests-note").textContent = requests.length ? `${requests.length} from ${workers} web ${workers === 1 ? "worker" : "workers"}${server.keeps_prompts ? "" : ", without prompts"}` : "none yet";
  if (server.keeps_prompts !== drawnFor) begin(server);
  const old = rows;
  const scale = nice(Math.max(...requests.map(({ total_ms: time }) => time), 1));
  if (scale !== longest) for (const [each, row] of old) row.querySelector("svg").replaceWith(phaseBar(each.phases, scale));
  longest = scale;
  rows = new Map(requests.map((each) => [each, old.get(each) ?? requestRow(each, server)]));
  for (const [each, row] of old) if (!rows.has(each)) row.remove();
  [...rows.values()].forEach((row, index) => {
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
  });
}

function begin(server) {
  const columns = server.keeps_prompts ? [...COLUMNS, "Prompt"] : COLUMNS;
  drawnFor = server.keeps_prompts;
  rows = new Map();
  body = el("tbody");
  $("requests").replaceChildren(
    el("caption", { class: "sr" }, "The last requests, the newest first"),
    el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)))),
    body,
  );
}

// A client that leaves is no failure of the server. One that leaves a stream finds 200 in its head.
const hasLeft = ({ status, error }) => status === 499 || Boolean(error?.startsWith("ClientDisconnected"));

function requestRow(request, server) {
  const failed = !hasLeft(request) && (request.error !== null || request.status >= 400);
  const pill = failed ? "bad" : hasLeft(request) ? "idle" : "good";
  return el("tr", { class: failed ? "failed" : hasLeft(request) ? "left" : "" },
    el("td", {}, new Date(request.time * 1000).toLocaleTimeString("en-GB")),
    el("td", {}, el("span", { class: `pill ${pill}` }, request.status)),
    el("td", { class: "mono path" }, shown(request.path, 60)),
    el("td", { "data-name": "model" }, el("bdi", {}, shown(request.model, 40))),
    el("td", { class: "number", "data-name": "tokens" }, `${request.prompt_tokens}${request.cached_tokens ? ` (${request.cached_tokens} cached)` : ""} → ${request.generated_tokens}`),
    el("td", { class: "number", "data-name": "first" }, request.first_token_ms === null ? "–" : duration(request.first_token_ms / 1000)),
    el("td", { class: "number", "data-name": "total" }, duration(request.total_ms / 1000)),
    el("td", {}, phaseBar(request.phases, longest)),
    el("td", { class: "outcome" }, request.error === null ? shown(request.finish_reasons.join(", "), 60) : shown(request.error, 300)),
    el("td", { class: "mono id" }, shown(request.request_id, 256), el("span", { class: "figures" }, ` worker ${request.worker}`)),
    server.keeps_prompts ? el("td", { class: "outcome" }, el("bdi", {}, shown(request.prompt ?? "", 300))) : null);
}

function phaseBar(phases, scale) {
  const timed = PHASES.filter((phase) => phases[phase] !== undefined);
  const spelt = timed.map((phase) => `${phase} ${duration(phases[phase] / 1000)}`).join(", ");
  const title = svg("title", {});
  title.textContent = spelt;
  const bar = svg("svg", { viewBox: `0 0 ${WIDTH} 10`, class: "phase-bar", role: "img", "aria-label": spelt || "no phases" });
  bar.append(title);
  let x = 0;
  for (const phase of timed) {
    const width = (WIDTH * phases[phase]) / scale;
    bar.append(svg("rect", { x: x.toFixed(2), y: 1, height: 8, width: Math.max(width, 0.4).toFixed(2), class: `phase-${PHASES.indexOf(phase)}` }));
    x += width;
  }
  return bar;
}
