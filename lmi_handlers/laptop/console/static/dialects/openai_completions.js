// OpenAI's text completions. https://platform.openai.com/docs/api-reference/completions

import { ALTERNATIVES, firstOf, named, promptOf } from "./common.js";

const NAMES = {};

function tokens({ tokens: texts = [], token_logprobs: logprobs = [], top_logprobs: tops } = {}) {
  return texts.map((text, index) => ({
    text, logprob: logprobs[index], top: Object.entries(tops?.[index] ?? {}).map(([other, logprob]) => ({ text: other, logprob })),
  }));
}

export default {
  id: "openai-completions",
  name: "OpenAI completions",
  chats: false,
  prompts: true,
  path: () => "/v1/completions",
  names: NAMES,
  own: ["model", "prompt", "stream", "stream_options", "logprobs", "user", "suffix", "echo"],
  body(request) {
    const body = { model: request.model, prompt: promptOf(request), ...named(request, NAMES) };
    if (request.probabilities) body.logprobs = ALTERNATIVES;
    if (request.stream) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
    return body;
  },
  read(record) {
    const choice = firstOf(record.choices);
    return {
      error: record.error?.message ?? record.message,
      text: choice?.text ?? "",
      tokens: choice?.logprobs ? tokens(choice.logprobs) : undefined,
      finish: choice?.finish_reason,
      prompt: record.usage?.prompt_tokens,
      generated: record.usage?.completion_tokens,
    };
  },
};
