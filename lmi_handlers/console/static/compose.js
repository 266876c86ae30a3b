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
  const asked = text || images.length ? [...messages, next(text)] : messages;
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

// What is typed after a call of a tool is the tool's result.
function next(text) {
  const call = messages.at(-1)?.calls?.[0];
  return call ? { role: "tool", content: text, call } : { role: "user", content: text, images: images.map(({ url }) => url) };
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

// Tells whether the request can be sent. If not, the page says why.
export function isComplete() {
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

// Adds a request and its answer to the conversation.
export function answered(request, { text, calls }) {
  const made = calls.filter(Boolean).map((call, index) => ({ ...call, id: call.id || `call_${index}` }));
  messages = [...request.messages, { role: "assistant", content: text, calls: made.length ? made : undefined }];
  $("prompt").value = "";
  images = [];
  showImages();
  showConversation();
}

export const spelt = (calls) => calls.filter(Boolean).map(({ name, arguments: given }) => `${shown(name)}(${given.slice(0, MOST_SHOWN)})`).join("\n");

export function clear() {
  messages = [];
  images = [];
  $("prompt").value = "";
  showImages();
  showConversation();
}

function showConversation() {
  const box = $("conversation");
  box.replaceChildren(...messages.slice(-MOST_MESSAGES).map(({ role, content, images: own = [], calls }) => el("div", { class: `message ${role === "user" ? "user" : "assistant"}` },
    el("span", { class: "role" }, role),
    el("div", { class: "text" }, content.slice(0, MOST_SHOWN) + (content.length > MOST_SHOWN ? ` … and ${content.length - MOST_SHOWN} more characters` : ""), ...own.map((url) => el("img", { src: url, alt: "Image sent" }))),
    calls ? el("pre", { class: "head" }, spelt(calls)) : null)));
  toggle(box, messages.length > 0 && mode() === "chat");
  box.scrollTop = box.scrollHeight;
  const call = mode() === "chat" && messages.at(-1)?.calls?.[0];
  $("prompt-label").textContent = call ? `Result of ${shown(call.name, 40)}` : "Message";
  $("prompt").placeholder = call ? `Result of ${shown(call.name, 40)}` : "Ask something";
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
    if (event.target.name === "mode") showConversation();
  });
  $("image").addEventListener("change", (event) => addImages([...event.target.files]));
}
