// What several APIs have in common.

// The text that an API without chats gets: the prompt, or the last message.
export function promptOf(request) {
  return request.mode === "prompt" ? request.prompt : request.messages.findLast(({ role }) => role !== "assistant")?.content ?? "";
}

// OpenAI's messages. Content is a string unless there are images.
export function messagesOf(request) {
  const messages = request.messages.map(messageOf);
  return request.system ? [{ role: "system", content: request.system }, ...messages] : messages;
}

function messageOf({ role, content, images = [], calls, call }) {
  if (role === "tool") return { role, content, tool_call_id: call.id };
  if (calls) return { role, content, tool_calls: calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } })) };
  return { role, content: images.length ? [{ type: "text", text: content }, ...images.map((url) => ({ type: "image_url", image_url: { url } }))] : content };
}

// The first of several alternatives. Others are not shown.
export const firstOf = (choices) => choices?.find(({ index }) => !index);

// The parameters by the API's own names. Those that it does not have were left out before.
export function named(request, names) {
  return Object.fromEntries(Object.entries(request.parameters).map(([name, value]) => [names[name] ?? name, value]));
}

export const onlyModel = (request) => (request.severalModels ? `?model_name=${encodeURIComponent(request.model)}` : "");

// How many likely tokens are asked for, if probabilities are wanted.
export const ALTERNATIVES = 5;
