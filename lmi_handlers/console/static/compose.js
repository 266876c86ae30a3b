// What is about to be asked: the prompt or the conversation, images, tools and parameters. All APIs make bodies of it.

import { $, el, shown, toggle } from "./dom.js";
import { parametersAreValid, parameterValues } from "./parameters.js";

const MOST_MESSAGES = 100; // that are shown
const MOST_SHOWN = 20_000; // characters of a message
const MOST_IMAGE = 8_000_000; // bytes
const MOST_IMAGES = 8;

let messages = [];
let images = []; // {url, name}
let server = { dialect: "tgi", model: "", severalModels: false, generates: true };
let onChange = () => {};

const mode = () => $("compose").elements.mode.value;

// Returns the request as it would be sent now.
export function requestFor(api) {
  const text = $("prompt").value;
  const asked = [...messages, ...next(text)];
  const request = {
    mode: mode(),
    system: $("system").value.trim(),
    messages: asked.length ? asked : [{ role: "user", content: "" }],
    prompt: text,
    tools: toolsOr(undefined),
    stream: $("stream").checked,
    probabilities: $("probabilities").checked,
    parameters: {},
    model: server.model,
    severalModels: server.severalModels,
  };
  return { ...request, parameters: parameterValues(api, request) };
}

// The calls of tools in the last answer. The next request has a result for each, instead of a message.
const openCalls = () => messages.at(-1)?.calls ?? [];

function next(text) {
  const calls = openCalls();
  if (calls.length) return calls.map((call, index) => ({ role: "tool", content: $("results").querySelectorAll("textarea")[index].value, call }));
  return text || images.length ? [{ role: "user", content: text, images: images.map(({ url }) => url) }] : [];
}

const wantsResults = () => mode() === "chat" && openCalls().length > 0;

// Moves the focus to where the next message is written, or the first result.
export function focusInput() {
  (wantsResults() ? $("results").querySelector("textarea") : $("prompt")).focus({ preventScroll: true });
}

function toolsOr(otherwise) {
  const text = $("tools").value.trim();
  if (!text || mode() === "prompt") return undefined;
  try {
    const tools = JSON.parse(text);
    return Array.isArray(tools) ? tools : otherwise;
  } catch {
    return otherwise;
  }
}

// Tells whether the request can be sent. If not, the page says why.
export function isComplete() {
  const tools = toolsOr(null);
  $("tools").setCustomValidity(tools === null ? "This is not a JSON list." : "");
  if (tools === null) {
    $("tools-box").open = true;
    return $("tools").reportValidity();
  }
  if (!$("prompt").value && (mode() === "prompt" || (!images.length && !messages.length))) {
    focusInput();
    return false;
  }
  return parametersAreValid();
}

// Adds a request and its answer to the conversation. What was written meanwhile stays.
export function answered(request, text, calls) {
  const made = calls.filter(Boolean).map((call, index) => ({ ...call, id: call.id || `call_${index}` }));
  const last = request.messages.at(-1);
  messages = [...request.messages, { role: "assistant", content: text, calls: made.length ? made : undefined }];
  if (last.role === "user") {
    if ($("prompt").value === request.prompt) $("prompt").value = "";
    images = images.filter(({ url }) => !last.images?.includes(url));
  }
  showConversation();
  showImages();
}

export const spelt = (calls) => calls.filter(Boolean).map(({ name, arguments: given }) => `${shown(name)}(${given.slice(0, MOST_SHOWN)})`).join("\n");

export function clear() {
  messages = [];
  images = [];
  $("prompt").value = "";
  showConversation();
  showImages();
}

function showConversation() {
  const box = $("conversation");
  box.replaceChildren(...messages.slice(-MOST_MESSAGES).map(({ role, content, images: own = [], calls, call }) => el("div", { class: `message ${role === "user" ? "user" : "assistant"}` },
    el("span", { class: "role" }, call ? `result of ${shown(call.name, 40)}` : role),
    el("div", { class: "text" }, content.slice(0, MOST_SHOWN) + (content.length > MOST_SHOWN ? ` … and ${content.length - MOST_SHOWN} more characters` : ""), ...own.map((url) => el("img", { src: url, alt: "Image sent" }))),
    calls ? el("pre", { class: "head" }, spelt(calls)) : null)));
  box.scrollTop = box.scrollHeight;
  $("results").replaceChildren(...openCalls().map((call) => el("label", {}, `Result of ${shown(spelt([call]))}`, el("textarea", { rows: "2", class: "mono" }))));
  showMode();
}

function showMode() {
  toggle($("conversation"), messages.length > 0 && mode() === "chat");
  toggle($("results"), wantsResults());
  toggle($("prompt-box"), !wantsResults());
}

function showImages(note = "") {
  $("images").replaceChildren(...images.map((image, index) => el("figure", {}, el("img", { src: image.url, alt: shown(image.name, 100) }), el("button", { type: "button", class: "quiet", "aria-label": `Remove ${shown(image.name, 40)}`, onclick: () => removeImage(index) }, "×"))));
  toggle($("images"), images.length > 0);
  $("image-note").textContent = note;
  toggle($("image-note"), note !== "");
  onChange();
}

function removeImage(index) {
  images.splice(index, 1);
  showImages();
  $("image").focus();
}

async function addImages(files) {
  const notes = [];
  for (const file of files) {
    const why = file.size > MOST_IMAGE ? `it has more than ${MOST_IMAGE / 1e6} MB` : images.length >= MOST_IMAGES ? `there are ${MOST_IMAGES} already` : "";
    const url = why ? null : await dataUrl(file);
    if (url) images.push({ url, name: file.name });
    else notes.push(`${shown(file.name, 60)} was left out: ${why || "it cannot be read"}.`);
  }
  $("image").value = "";
  showImages(notes.slice(0, 5).join(" "));
}

const dataUrl = (file) => new Promise((resolve) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => resolve(null);
  reader.readAsDataURL(file);
});

// What is said of a request in this API: what of it cannot be sent.
export function notesOn(api, request) {
  const notes = [];
  if (!server.generates) notes.push("This model generates no text, so these APIs refuse it.");
  if (request.mode === "chat" && !api.chats) notes.push(`${api.name} has no chats on this route: only the last message is sent${images.length ? ", without its images" : ""}.`);
  if (request.mode === "prompt" && !api.prompts) notes.push(`${api.name} has no prompts: it is sent as the message of a user.`);
  if (request.mode === "prompt" && images.length) notes.push("Images are sent in chats only.");
  if (wantsResults() && images.length) notes.push("Images are sent with the next message.");
  if (request.tools && !api.tools) notes.push("Tools are not sent.");
  if (api.note) notes.push(api.note(server));
  return notes.filter(Boolean).join(" ");
}

// Takes over the model that is chosen, and tells whether anything has changed.
export function useModel(model, { dialect, has_several_models: severalModels }) {
  const before = JSON.stringify(server);
  server = { dialect, model: model?.name ?? "", severalModels, generates: model?.generates ?? true };
  toggle($("image-box"), Boolean(model?.capabilities?.takes_images));
  return JSON.stringify(server) !== before;
}

// Calls `changed` whenever another request would be sent.
export function startCompose(changed) {
  onChange = changed;
  $("compose").addEventListener("input", () => {
    $("tools").setCustomValidity("");
    changed();
  });
  $("compose").addEventListener("change", (event) => {
    if (event.target.name === "mode") showMode();
  });
  $("image").addEventListener("change", (event) => addImages([...event.target.files]));
}
