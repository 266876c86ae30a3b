// The view in which requests are written, sent, stopped and looked at.

import { AnswerView } from "./answer.js";
import * as code from "./code.js";
import { hasKey, send } from "./connection.js";
import { DIALECTS } from "./dialects/all.js";
import { $, duration, el, shown, tabs, toggle } from "./dom.js";
import { parameterValues, parametersAreValid, resetParameters, showParameters } from "./parameters.js";
import { Records } from "./records.js";
import { receivedView, sentView } from "./wire.js";

const MOST_MESSAGES = 100;
const MOST_IMAGE = 8_000_000;
const LANGUAGES = { curl: code.curl, boto3: code.boto3, openai: code.openai, huggingface_hub: code.huggingfaceHub };

const records = new Map(); // of each API: what its last request and answer were on the wire
let dialect = DIALECTS[0];
let messages = [];
let images = [];
let running = null;
let server = { dialect: "tgi", model: "", severalModels: false };
let wire = "sent";
let asHex = false;
let language = "curl";
let answer;
let apiTabs;
let wireTabs;
let onAnswered = () => {};
const outcome = { text: "", calls: [], finish: null, prompt: null, generated: null, error: "" };

const mode = () => $("compose").elements.mode.value;

// Returns the request as it would be sent now. All APIs make their bodies of it.
function requestFor(target) {
  const text = $("prompt").value;
  const said = text || images.length ? [...messages, { role: "user", content: text, images: images.map(({ url }) => url) }] : messages;
  const request = {
    mode: mode(),
    system: $("system").value.trim(),
    messages: said.length ? said : [{ role: "user", content: "" }],
    prompt: text,
    tools: toolsOr(undefined),
    stream: $("stream").checked,
    probabilities: $("probabilities").checked,
    parameters: {},
    model: server.model,
    severalModels: server.severalModels,
  };
  return { ...request, parameters: parameterValues(target, request) };
}

function toolsOr(otherwise) {
  const text = $("tools").value.trim();
  if (!text || mode() === "prompt") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}

// Shows what depends on the API, the mode or the text.
function refresh() {
  const request = requestFor(dialect);
  $("route").textContent = `POST ${dialect.path(request)}`;
  document.body.classList.toggle("prompting", request.mode === "prompt");
  const notes = [dialect.note?.(server) ?? ""];
  if (request.mode === "chat" && !dialect.chats) notes.unshift(`${dialect.name} has no chats on this route: only the last message is sent.`);
  if (request.mode === "prompt" && !dialect.prompts) notes.unshift(`${dialect.name} has no prompts: it is sent as the message of a user.`);
  const note = notes.filter(Boolean).join(" ");
  $("api-note").textContent = note;
  toggle($("api-note"), note !== "");
  showParameters(dialect, request, refreshWire);
  refreshWire();
}

function refreshWire() {
  const panel = $("wire-panel");
  const record = records.get(dialect.id);
  if (wire === "code") {
    const text = LANGUAGES[language](dialect, requestFor(dialect), hasKey());
    panel.replaceChildren(
      el("div", { class: "row" }, languageChoice(), el("span", { class: "grow" }), el("button", { type: "button", class: "quiet", onclick: (event) => copy(text, event.currentTarget) }, "Copy")),
      el("pre", { class: "wire-text", "data-wire": "code", tabindex: "0", "aria-label": "Code" }, text.slice(0, 200_000)),
    );
    return;
  }
  const hexBox = el("label", { class: "check" }, el("input", { type: "checkbox", onchange: (event) => { asHex = event.target.checked; refreshWire(); $("hex").focus(); }, id: "hex" }), "Bytes in hexadecimal");
  hexBox.firstChild.checked = asHex;
  const own = dialect;
  const pending = { sent: { method: "POST", path: own.path(requestFor(own)), headers: { "Content-Type": "application/json" }, body: JSON.stringify(own.body(requestFor(own))) } };
  const views = wire === "sent" ? sentView(record ?? pending, asHex) : receivedView(record, asHex);
  panel.replaceChildren(el("div", { class: "row" }, ...views.splice(0, 1), el("span", { class: "grow" }), !record && wire === "sent" ? el("span", { class: "figures" }, "not sent yet") : null, hexBox), ...views);
}

function languageChoice() {
  const select = el("select", { id: "language", "aria-label": "Language", onchange: (event) => { language = event.target.value; refreshWire(); $("language").focus(); } }, ...Object.keys(LANGUAGES).map((name) => el("option", { value: name }, name)));
  select.value = language;
  return select;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function showConversation() {
  const box = $("conversation");
  const shownMessages = messages.slice(-MOST_MESSAGES);
  box.replaceChildren(...shownMessages.map(({ role, content, images: own = [], calls }) => el("div", { class: `message ${role === "user" ? "user" : "assistant"}` },
    el("span", { class: "role" }, role),
    el("div", { class: "text" }, content.slice(0, 20_000) + (content.length > 20_000 ? ` … and ${content.length - 20_000} more characters` : ""), ...own.map((url) => el("img", { src: url, alt: "Image sent" }))),
    calls ? el("pre", { class: "head" }, calls) : null)));
  toggle(box, messages.length > 0 && mode() === "chat");
  box.scrollTop = box.scrollHeight;
}

function showFigures(record) {
  const end = record.ended ?? performance.now();
  const parts = [];
  if (outcome.prompt != null) parts.push(`${outcome.prompt} prompt tokens`);
  const generated = outcome.generated ?? (outcome.tokens || null);
  if (generated != null) parts.push(`${generated} generated`);
  if (record.first) parts.push(`first after ${duration((record.first - record.started) / 1000)}`);
  parts.push(`${duration((end - record.started) / 1000)}`);
  if (record.first && generated > 1 && end > record.first + 20 && record.pieces.length > 1) parts.push(`${(generated / ((end - record.first) / 1000)).toFixed(1)} tokens/s`);
  if (outcome.finish) parts.push(shown(outcome.finish, 40));
  if (record.stopped) parts.push("stopped");
  $("figures").textContent = parts.join(" · ");
}

function take(read, wanted) {
  if (read.error) outcome.error = typeof read.error === "string" ? read.error : JSON.stringify(read.error);
  if (read.reasoning) answer.reasoning(read.reasoning);
  if (read.text || read.tokens?.length) {
    answer.append(read.text, tokensOf(read), wanted);
    if (outcome.text.length < 1_000_000) outcome.text += read.text;
    outcome.tokens += read.tokens?.length ?? 0;
  }
  for (const call of read.calls ?? []) takeCall(call);
  if (read.tops) answer.alternatives(read.tops);
  if (read.finish) outcome.finish = read.finish;
  if (read.prompt != null) outcome.prompt = read.prompt;
  if (read.generated != null) outcome.generated = read.generated;
}

// The tokens that spell the text, without the one that ends an answer. null if they do not, as with half a character.
function tokensOf({ text, tokens = [] }) {
  let length = 0;
  const end = tokens.findIndex((token) => {
    const follows = length < text.length && text.startsWith(token.text, length);
    length += follows ? token.text.length : 0;
    return !follows;
  });
  return length === text.length ? tokens.slice(0, end < 0 ? tokens.length : end) : null;
}

function takeCall({ index = outcome.calls.length, function: called = {} }) {
  const call = (outcome.calls[index] ??= { name: "", arguments: "" });
  call.name += called.name ?? "";
  call.arguments += called.arguments ?? "";
}

async function run() {
  if (running || !isComplete()) return;
  const target = dialect;
  const request = requestFor(target);
  const controller = new AbortController();
  running = controller;
  const record = await exchange(target, request, controller.signal).catch((error) => {
    outcome.error = error.record ? "The server could not be reached, or closed the connection." : String(error.message ?? error);
    return error.record;
  });
  running = null;
  finish(target, request, record);
}

function isComplete() {
  const tools = toolsOr(null);
  $("tools").setCustomValidity(tools === null ? "This is not JSON." : "");
  if (tools === null) {
    $("tools-box").open = true;
    return $("tools").reportValidity();
  }
  if (!$("prompt").value && !images.length && !messages.length) {
    $("prompt").focus();
    return false;
  }
  return parametersAreValid();
}

async function exchange(target, request, signal) {
  Object.assign(outcome, { text: "", calls: [], finish: null, prompt: null, generated: null, error: "", tokens: 0 });
  answer.clear();
  $("said").textContent = "";
  $("answer").setAttribute("aria-busy", "true");
  toggle($("failure"), false);
  busy(true);
  let reader = null;
  let painted = 0;
  const takeAll = (found) => {
    for (const each of found) take(target.read(each), request.probabilities);
  };
  const record = await send(target.path(request), target.body(request), signal, (head) => {
    reader = new Records(head.type);
    records.set(target.id, head);
    refreshWire();
  }, (bytes, current) => {
    takeAll(reader.feed(bytes));
    if (performance.now() - painted > 200) {
      painted = performance.now();
      showFigures(current);
      if (wire === "received" && dialect === target) refreshWire();
    }
  });
  if (reader && !record.stopped) takeAll(reader.finish());
  if (record.status >= 400 && !outcome.error) outcome.error = `The server answered with status ${record.status}.`;
  if (!record.status) records.set(target.id, record);
  return record;
}

function finish(target, request, record) {
  busy(false);
  $("answer").setAttribute("aria-busy", "false");
  if (record) showFigures(record);
  const calls = outcome.calls.filter(Boolean).map(({ name, arguments: given }) => `${shown(name)}(${given})`).join("\n");
  if (calls) answer.append(`${outcome.text ? "\n" : ""}${calls}`, null, false);
  $("failure").textContent = outcome.error.slice(0, 2000);
  toggle($("failure"), outcome.error !== "");
  $("said").textContent = outcome.error ? "" : `The answer is complete: ${outcome.text.slice(0, 1000)}`;
  if (request.mode === "chat" && !outcome.error && (outcome.text || calls)) {
    messages = [...request.messages, { role: "assistant", content: outcome.text, calls: calls || undefined }];
    $("prompt").value = "";
    images = [];
    showImages();
    showConversation();
  }
  refreshWire();
  onAnswered();
}

function busy(is) {
  $("send").disabled = $("send-all").disabled = is;
  toggle($("send"), !is);
  toggle($("stop"), is);
  if (is) $("stop").focus({ preventScroll: true });
  else if (document.activeElement === document.body || document.activeElement === $("stop")) $("prompt").focus({ preventScroll: true });
}

// Sends the same request in each API. What was on the wire is then in the tab of each.
async function runAll() {
  if (running || !isComplete()) return;
  const controller = new AbortController();
  running = controller;
  const own = dialect;
  let record = null;
  for (const target of [...DIALECTS.filter((each) => each !== own), own]) {
    if (controller.signal.aborted) break;
    try {
      record = await exchange(target, requestFor(target), controller.signal);
    } catch (error) {
      outcome.error = "The server could not be reached, or closed the connection.";
      record = error.record ?? null;
    }
    apiTabs.button(target.id).classList.toggle("failed", outcome.error !== "");
    apiTabs.button(target.id).classList.toggle("answered", outcome.error === "");
  }
  running = null;
  finish(own, { ...requestFor(own), mode: "prompt" }, record); // the conversation stays as it is, to be sent again
}

function stop() {
  running?.abort();
}

function showImages() {
  $("images").replaceChildren(...images.map((image, index) => el("figure", {}, el("img", { src: image.url, alt: image.name.slice(0, 100) }), el("button", { type: "button", class: "quiet", "aria-label": `Remove ${shown(image.name, 40)}`, onclick: () => { images.splice(index, 1); showImages(); } }, "×"))));
  toggle($("images"), images.length > 0);
  refreshWire();
}

async function addImages(files) {
  for (const file of files) {
    if (file.size > MOST_IMAGE) continue;
    const url = await new Promise((resolve) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.readAsDataURL(file);
    });
    images.push({ url, name: file.name });
  }
  $("image").value = "";
  showImages();
}

// Shows the model that is chosen, and what it can do.
export function useModel(model, about) {
  const before = JSON.stringify(server);
  server = { dialect: about.dialect, model: model?.name ?? "", severalModels: about.has_several_models };
  toggle($("image-box"), Boolean(model?.capabilities?.takes_images));
  if (JSON.stringify(server) !== before) refresh();
}

export const refreshTry = refresh;

export function startTry(answered) {
  onAnswered = answered;
  answer = new AnswerView();
  apiTabs = tabs($("apis"), DIALECTS.map(({ id, name }) => [id, name]), $("api-panel"), (id) => {
    dialect = DIALECTS.find((each) => each.id === id);
    refresh();
  });
  wireTabs = tabs($("wire-tabs"), [["sent", "Sent"], ["received", "Received"], ["code", "Code"]], $("wire-panel"), (id) => {
    wire = id;
    refreshWire();
  });
  apiTabs.select(dialect.id);
  wireTabs.select(wire);
  $("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  $("compose").addEventListener("input", () => {
    $("tools").setCustomValidity("");
    if (!running) records.delete(dialect.id);
    refreshWire();
  });
  $("compose").addEventListener("change", (event) => {
    if (["mode", "stream"].includes(event.target.name || event.target.id)) {
      showConversation();
      refresh();
    }
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) stop();
  });
  $("stop").addEventListener("click", stop);
  $("send-all").addEventListener("click", runAll);
  $("image").addEventListener("change", (event) => addImages([...event.target.files]));
  $("reset").addEventListener("click", () => {
    resetParameters();
    refresh();
  });
  $("clear").addEventListener("click", () => {
    stop();
    messages = [];
    images = [];
    records.clear();
    $("prompt").value = "";
    answer.clear();
    $("figures").textContent = "";
    toggle($("failure"), false);
    showImages();
    showConversation();
    refresh();
    $("prompt").focus();
  });
  refresh();
}
