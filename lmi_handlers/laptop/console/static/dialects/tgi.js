// Text Generation Inference: /generate and /generate_stream.

import { ALTERNATIVES, named, onlyModel, promptOf } from "./common.js";

export const NAMES = { max_tokens: "max_new_tokens" };

const token = ({ text, logprob }) => ({ text, logprob });

export function readTgi(record) {
  const whole = Array.isArray(record) ? record[0] : record;
  const { details } = whole;
  const read = { finish: details?.finish_reason, generated: details?.generated_tokens, prompt: details?.input_length, error: whole.error };
  if (!whole.token) {
    return {
      ...read, text: whole.generated_text ?? "",
      tokens: details?.tokens?.map((each, index) => ({ ...token(each), top: details.top_tokens?.[index]?.map(token) })),
    };
  }
  return { ...read, text: whole.token.special ? "" : whole.token.text, tokens: [{ ...token(whole.token), top: whole.top_tokens?.map(token) }] };
}

export function tgiBody(request) {
  const parameters = { ...named(request, NAMES), details: true };
  if (request.probabilities) parameters.top_n_tokens = ALTERNATIVES;
  return { inputs: promptOf(request), parameters };
}

export const TGI_OWN = ["details", "top_n_tokens", "stop_sequences", "watermark", "grammar", "adapter_id"];

export default {
  id: "tgi",
  name: "TGI",
  chats: false,
  prompts: true,
  path: (request) => (request.stream ? "/generate_stream" : "/generate") + onlyModel(request),
  names: NAMES,
  own: TGI_OWN,
  body: tgiBody,
  read: readTgi,
};
