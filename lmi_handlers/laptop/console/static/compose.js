// What is about to be asked: the prompt or the conversation, images, tools and parameters. All APIs make bodies of it.

import { conversations, forget, keep } from "./conversations.js";
import { $, el, shown, toggle } from "./dom.js";
import { imageUrls, setImages, startImages, takeImages } from "./images.js";
import { showMessages, spelt } from "./messages.js";
import { parametersAreValid, parameterValues } from "./parameters.js";

const MOST_TITLE = 50;

let messages = [];
let edited = null; // the message that is written anew. It and what follows stay until that is sent
let seen = []; // what is shown of the messages, or that is about to be one of them
let id = ""; // by which the conversation is kept
let server = { dialect: "tgi", model: "", severalModels: false, generates: true, embeds: false };
let embeds = false; // whether the API that is open does
let onChange = () => {};

const mode = () => (embeds ? "prompt" : $("compose").elements.mode.value);

// Returns the request as it would be sent now, or one for another answer to `asked`.
export function requestFor(api, asked = [...before(), ...next()]) {
  const request = {
    mode: api.embeds ? "prompt" : mode(),
    system: $("system").value.trim(),
    messages: asked.length ? asked : [{ role: "user", content: "" }],
    prompt: $("prompt").value,
    tools: toolsOr(undefined),
    stream: $("stream").checked,
    probabilities: $("probabilities").checked,
    parameters: {},
    model: server.model,
    severalModels: server.severalModels,
  };
  return { ...request, parameters: parameterValues(api, request) };
}

// Takes over the API that is open.
export function useApi(api) {
  const changes = embeds !== Boolean(api.embeds);
  embeds = Boolean(api.embeds);
  $("prompt").placeholder = embeds ? "One text per line" : "Ask something";
  document.body.classList.toggle("embedding", embeds);
  if (changes) show(false); // the answer is that of the other kind
}

// The messages that the next one follows.
const before = () => (edited ? messages.slice(0, messages.indexOf(edited)) : messages);

// The calls of tools in the last answer. The next request has a result for each, instead of a message.
const openCalls = () => before().at(-1)?.calls ?? [];

const resultBoxes = () => [...$("results").querySelectorAll("textarea")];

function next() {
  const [calls, text, images] = [openCalls(), $("prompt").value, imageUrls()];
  if (calls.length) return calls.map((call, index) => ({ role: "tool", content: resultBoxes()[index].value, call }));
  return text || images.length ? [{ role: "user", content: text, images }] : [];
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
  if (!$("prompt").value && (mode() === "prompt" || !next().length)) {
    focusInput();
    return false;
  }
  return parametersAreValid();
}

// Makes what is written a part of the conversation, whose answer is about to arrive. Returns a function that gives it back
// if none does. What is written meanwhile stays.
export function take(request) {
  const [old, oldEdited, text, images, results] = [messages, edited, $("prompt").value, imageUrls(), resultBoxes().map(({ value }) => value)];
  const isWritten = request.messages.length > before().length; // or else, another answer is wanted
  [messages, edited] = [request.messages, null];
  if (isWritten) {
    $("prompt").value = "";
    setImages([]);
  }
  show(true);
  return () => {
    [messages, edited] = [old, oldEdited];
    show(true, request.messages);
    if (!isWritten) return;
    $("prompt").value ||= text;
    if (!imageUrls().length) setImages(images);
    resultBoxes().forEach((box, index) => { box.value ||= results[index] ?? ""; });
    fit();
  };
}

// Adds the answer to the conversation.
export function answered({ text, reasoning, calls }) {
  const made = calls.filter(Boolean).map((call, index) => ({ ...call, id: call.id || `call_${index}` }));
  messages = [...messages, { role: "assistant", content: text, reasoning: reasoning || undefined, calls: made.length ? made : undefined }];
  id ||= `${Date.now()} ${Math.random()}`;
  keep(id, messages);
  show(true, messages.slice(0, -1));
}

// Begins a conversation, or opens one that is kept.
export function open(wanted = "") {
  messages = conversations().find((each) => each.id === wanted)?.messages ?? [];
  id = messages.length ? wanted : "";
  edited = null;
  $("prompt").value = "";
  setImages([]);
  show(false);
}

// Forgets the conversation that is open.
export function forgetOpen() {
  forget(id);
  open();
}

// The messages that the last answer was given to.
export const answeredTo = () => messages.slice(0, messages.findLastIndex(({ role }) => role === "assistant"));

// Shows what is asked without making it a part of the conversation.
export const showAsked = (request) => show(true, request.messages);

// Shows the conversation. With `isLive`, its answer is shown elsewhere, below `others`.
function show(isLive, others = messages) {
  seen = others;
  showMessages(seen, edited);
  toggle($("live"), isLive);
  $("conversation").scrollTop = $("conversation").scrollHeight;
  showNext();
  const kept = conversations();
  $("kept").replaceChildren(el("option", { value: "" }, "New chat"), ...kept.map((each) => el("option", { value: each.id }, shown(titleOf(each.messages), MOST_TITLE))));
  $("kept").value = kept.some((each) => each.id === id) ? id : "";
  toggle($("kept"), kept.length > 0);
  toggle($("forget"), $("kept").value !== "");
}

const titleOf = (all) => all.find(({ role, content }) => role === "user" && content.trim())?.content.trim() ?? "Images";

function showNext() {
  $("results").replaceChildren(...openCalls().map((call) => el("label", {}, `Result of ${shown(spelt([call]))}`, el("textarea", { rows: "2", class: "mono" }))));
  toggle($("editing"), edited !== null);
  showMode();
}

function showMode() {
  toggle($("results"), wantsResults());
  toggle($("prompt-box"), !wantsResults());
  fit();
}

// The message grows with what is written, as far as the style lets it.
function fit() {
  const lines = $("prompt").value.split("\n").length;
  $("prompt").rows = Math.min(12, Math.max(2, lines));
}

// Writes a message anew. What follows it stays until that is sent.
export function edit(message) {
  if (message && !messages.includes(message)) return focusInput(); // it has failed, and is there already
  edited = message;
  $("prompt").value = message?.content ?? "";
  setImages(message?.images ?? []);
  showMessages(seen, edited);
  showNext();
  onChange();
  focusInput();
}

// What is said of a request in this API: what of it cannot be sent.
export function notesOn(api, request) {
  const notes = [];
  if (!server.generates && !api.embeds) notes.push("This model generates no text, so this API refuses it.");
  if (server.generates && api.embeds) notes.push("This model generates text. Embeddings need option.task=text-embedding.");
  if (request.mode === "chat" && !api.chats) notes.push(`${api.name} has no chats on this route: only the last message is sent${imageUrls().length ? ", without its images" : ""}.`);
  if (request.mode === "prompt" && !api.prompts) notes.push(`${api.name} has no prompts: it is sent as the message of a user.`);
  if (request.mode === "prompt" && !api.embeds && imageUrls().length) notes.push("Images are sent in chats only.");
  if (wantsResults() && imageUrls().length) notes.push("Images are sent with the next message.");
  if (request.tools && !api.tools) notes.push("Tools are not sent.");
  if (api.note) notes.push(api.note(server));
  return notes.filter(Boolean).join(" ");
}

// Takes over the model that is chosen, and tells whether anything has changed.
export function useModel(model, { dialect, has_several_models: severalModels }) {
  const before = JSON.stringify(server);
  server = { dialect, model: model?.name ?? "", severalModels, generates: model?.generates ?? true, embeds: Boolean(model?.capabilities && !model.generates) };
  takeImages(Boolean(model?.capabilities?.takes_images));
  return JSON.stringify(server) !== before;
}

// Tells whether the model answers with numbers.
export const modelEmbeds = () => server.embeds;

// Calls `changed` whenever another request would be sent.
export function startCompose(changed) {
  onChange = changed;
  $("compose").addEventListener("input", () => {
    $("tools").setCustomValidity("");
    fit();
    changed();
  });
  $("compose").addEventListener("change", (event) => {
    if (event.target.name === "mode") show(false);
  });
  $("cancel").addEventListener("click", () => edit(null));
  startImages(changed);
  open();
}
