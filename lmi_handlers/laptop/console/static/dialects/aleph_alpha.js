// Aleph Alpha: /complete for a prompt, /chat/completions for a chat.

import { ALTERNATIVES, messagesOf, named } from "./common.js";
import { readChat } from "./openai_chat.js";

const NAMES = { max_tokens: "maximum_tokens", stop: "stop_sequences" };
const CHAT_NAMES = {};

// An object of alternatives: the chosen token is in `completion_tokens`, or the likeliest.
function tokens(completion) {
  return completion.log_probs?.map((tops, index) => {
    const top = Object.entries(tops).map(([text, logprob]) => ({ text, logprob })).sort((one, other) => other.logprob - one.logprob);
    const text = completion.completion_tokens?.[index] ?? top[0]?.text ?? "";
    return { text, logprob: tops[text], top };
  });
}

function readCompletion(record) {
  const completion = record.completions?.[0] ?? record;
  return {
    error: record.error,
    text: completion.completion ?? "",
    tokens: tokens(completion),
    finish: completion.finish_reason,
    prompt: record.num_tokens_prompt_total,
    generated: record.num_tokens_generated,
  };
}

export default {
  id: "aleph-alpha",
  name: "Aleph Alpha",
  chats: true,
  prompts: true,
  path: (request) => (request.mode === "chat" ? "/chat/completions" : "/complete"),
  names: (mode) => (mode === "chat" ? CHAT_NAMES : NAMES),
  own: ["model", "messages", "prompt", "stream", "stream_options", "logprobs", "top_logprobs", "log_probs", "tokens"],
  body(request) {
    if (request.mode === "chat") {
      const body = { model: request.model, messages: messagesOf(request), ...named(request, CHAT_NAMES) };
      if (request.probabilities) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
      return request.stream ? { ...body, stream: true, stream_options: { include_usage: true } } : body;
    }
    const body = { model: request.model, prompt: request.prompt, ...named(request, NAMES) };
    if (request.probabilities) Object.assign(body, { log_probs: ALTERNATIVES, tokens: true });
    return request.stream ? { ...body, stream: true } : body;
  },
  read: (record) => (record.choices ? readChat(record) : readCompletion(record)),
};
