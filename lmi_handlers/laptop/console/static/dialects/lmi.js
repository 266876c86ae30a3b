// LMI (DJL Serving): /invocations, as on SageMaker. Chats have OpenAI's bodies there.

import { ALTERNATIVES, named, onlyModel } from "./common.js";
import { chatBody, NAMES as CHAT_NAMES, readChat } from "./openai_chat.js";

const NAMES = { max_tokens: "max_new_tokens", stop: "stop_sequences" };

const token = ({ text, log_prob }) => ({ text, logprob: log_prob });

function readLmi(record) {
  const whole = Array.isArray(record) ? record[0] : record;
  const { details } = whole;
  const tops = details?.top_tokens?.map((top) => top.map(token));
  const read = { finish: details?.finish_reason, generated: details?.generated_tokens, tops, error: whole.error ?? whole.message ?? whole.token?.error_msg };
  if (whole.token === undefined) {
    return { ...read, text: whole.generated_text ?? "", tokens: details?.tokens?.map((each, index) => ({ ...token(each), top: tops?.[index] })) };
  }
  return { ...read, text: whole.token.text, tokens: whole.token.error_msg ? undefined : [token(whole.token)] };
}

export default {
  id: "lmi",
  name: "LMI",
  chats: true,
  tools: true,
  prompts: true,
  path: (request) => `/invocations${onlyModel(request)}`,
  names: (mode) => (mode === "chat" ? CHAT_NAMES : NAMES),
  own: ["model", "messages", "tools", "tool_choice", "inputs", "stream", "stream_options", "logprobs", "top_logprobs", "top_n_tokens", "details", "max_completion_tokens", "request_output_len", "random_seed", "runtime_top_k", "runtime_top_p", "output_formatter", "documents", "store", "user", "service_tier"],
  body(request) {
    if (request.mode === "chat") return chatBody(request);
    const parameters = { ...named(request, NAMES), details: true };
    if (request.probabilities) parameters.top_n_tokens = ALTERNATIVES;
    return { inputs: request.prompt, parameters, ...(request.stream ? { stream: true } : {}) };
  },
  read: (record) => (record.choices || record.object ? readChat(record) : readLmi(record)),
};
