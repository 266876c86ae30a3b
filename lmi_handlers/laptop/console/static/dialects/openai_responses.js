// OpenAI's Responses. https://platform.openai.com/docs/api-reference/responses

import { ALTERNATIVES, named } from "./common.js";

const NAMES = { max_tokens: "max_output_tokens" };

// A chat's messages as items: calls of tools and their results are items of their own.
function itemsOf({ role, content, images = [], calls = [], call }) {
  if (role === "tool") return [{ type: "function_call_output", call_id: call.id, output: content }];
  const parts = images.length ? [{ type: "input_text", text: content }, ...images.map((url) => ({ type: "input_image", image_url: url }))] : content;
  const message = content || images.length ? [{ role, content: parts }] : [];
  return [...message, ...calls.map(({ id, name, arguments: given }) => ({ type: "function_call", call_id: id, name, arguments: given }))];
}

const toolOf = (tool) => (tool?.type === "function" && tool.function ? { type: "function", ...tool.function } : tool);
const callOf = ({ call_id: id, name, arguments: given }) => ({ id, function: { name, arguments: given } });
const isCall = ({ type }) => type === "function_call";

const tokensOf = (logprobs) => logprobs?.map(({ token, logprob, top_logprobs: top }) => ({
  text: token, logprob, top: top?.map((other) => ({ text: other.token, logprob: other.logprob })),
}));

function readEnd({ status, error, incomplete_details: cause, usage }) {
  return { error: error?.message, finish: cause?.reason ?? status, prompt: usage?.input_tokens, generated: usage?.output_tokens };
}

function readWhole(response) {
  const output = response.output ?? [];
  const parts = output.filter(({ type }) => type === "message").flatMap(({ content }) => content);
  const thoughts = output.filter(({ type }) => type === "reasoning").flatMap(({ content, summary }) => content ?? summary ?? []);
  const tokens = parts.flatMap(({ logprobs }) => tokensOf(logprobs) ?? []);
  return {
    ...readEnd(response),
    text: parts.map(({ text }) => text ?? "").join(""),
    reasoning: thoughts.map(({ text }) => text).join(""),
    calls: output.filter(isCall).map(callOf),
    tokens: tokens.length ? tokens : undefined,
  };
}

function readEvent({ type, delta, logprobs, item, response, message, error }) {
  if (type === "response.output_text.delta") return { text: delta, tokens: logprobs?.length ? tokensOf(logprobs) : undefined };
  if (/^response\.reasoning\w*\.delta$/.test(type)) return { reasoning: delta };
  if (type === "response.output_item.done" && isCall(item)) return { calls: [callOf(item)] };
  if (["response.completed", "response.incomplete", "response.failed"].includes(type)) return readEnd(response);
  return { error: type === "error" || error ? error?.message ?? message ?? "error" : undefined };
}

export default {
  id: "openai-responses",
  name: "OpenAI Responses",
  chats: true,
  tools: true,
  prompts: false,
  path: () => "/v1/responses",
  names: NAMES,
  own: ["model", "input", "instructions", "tools", "tool_choice", "stream", "include", "top_logprobs", "store", "background", "user", "service_tier"],
  body(request) {
    const messages = request.mode === "chat" ? request.messages : [{ role: "user", content: request.prompt }];
    const body = { model: request.model, input: messages.flatMap(itemsOf), ...named(request, NAMES) };
    if (request.mode === "chat" && request.system) body.instructions = request.system;
    if (request.tools) body.tools = request.tools.map(toolOf);
    if (request.probabilities) Object.assign(body, { include: ["message.output_text.logprobs"], top_logprobs: ALTERNATIVES });
    return request.stream ? { ...body, stream: true } : body;
  },
  read: (record) => (record.object === "response" ? readWhole(record) : readEvent(record)),
};
