// What several APIs have in common.

// The text that an API without chats gets: the prompt, or the last message.
export function promptOf(request) {
  return request.mode === "prompt" ? request.prompt : request.messages.findLast((message) => message.role === "user")?.content ?? "";
}

// OpenAI's messages. Content is a string unless there are images.
export function messagesOf(request) {
  const messages = request.messages.map(({ role, content, images = [] }) =>
    images.length ? { role, content: [{ type: "text", text: content }, ...images.map((url) => ({ type: "image_url", image_url: { url } }))] } : { role, content });
  return request.system ? [{ role: "system", content: request.system }, ...messages] : messages;
}

// The parameters by the API's own names. Those that it does not have were left out before.
export function named(request, names) {
  return Object.fromEntries(Object.entries(request.parameters).map(([name, value]) => [names[name] ?? name, value]));
}

export const onlyModel = (request) => (request.severalModels ? `?model_name=${encodeURIComponent(request.model)}` : "");

// How many likely tokens are asked for, if probabilities are wanted.
export const ALTERNATIVES = 5;
