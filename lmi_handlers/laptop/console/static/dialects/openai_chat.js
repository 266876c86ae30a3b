// OpenAI's chat. https://platform.openai.com/docs/api-reference/chat

import { ALTERNATIVES, firstOf, messagesOf, named } from "./common.js";

export const NAMES = { max_tokens: "max_tokens" };

export function chatBody(request) {
  const body = { model: request.model, messages: messagesOf(request), ...named(request, NAMES) };
  if (request.tools) body.tools = request.tools;
  if (request.probabilities) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  if (request.stream) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
  return body;
}

export function readChat(record) {
  const choice = firstOf(record.choices);
  const said = choice?.delta ?? choice?.message ?? {};
  return {
    error: record.error?.message ?? record.message ?? (typeof record.error === "string" ? record.error : undefined),
    text: said.content ?? "",
    reasoning: said.reasoning_content ?? said.reasoning ?? "",
    calls: said.tool_calls,
    tokens: choice?.logprobs?.content?.map(({ token, logprob, top_logprobs }) => ({
      text: token, logprob, top: top_logprobs?.map((other) => ({ text: other.token, logprob: other.logprob })),
    })),
    finish: choice?.finish_reason,
    prompt: record.usage?.prompt_tokens,
    generated: record.usage?.completion_tokens,
  };
}

export default {
  id: "openai-chat",
  name: "OpenAI chat",
  chats: true,
  tools: true,
  prompts: false,
  path: () => "/v1/chat/completions",
  names: NAMES,
  own: ["model", "messages", "tools", "tool_choice", "stream", "stream_options", "logprobs", "top_logprobs", "max_completion_tokens", "documents", "store", "user", "service_tier"],
  body: (request) => (request.mode === "chat" ? chatBody(request) : chatBody({ ...request, mode: "chat", messages: [{ role: "user", content: request.prompt }] })),
  read: readChat,
};
