// Writes a request as code that can be pasted: curl, boto3, openai and huggingface_hub.

import { address } from "./connection.js";
import { escaped } from "./dom.js";
import embeddings, { textsOf } from "./dialects/embeddings.js";
import lmi from "./dialects/lmi.js";
import openaiChat from "./dialects/openai_chat.js";
import openaiCompletions from "./dialects/openai_completions.js";
import openaiResponses from "./dialects/openai_responses.js";
import tgi from "./dialects/tgi.js";

// Parameters of the methods of these libraries. Others go into `extra_body`.
const OPENAI = new Set(["model", "messages", "prompt", "max_tokens", "temperature", "top_p", "n", "seed", "stop", "presence_penalty", "frequency_penalty", "stream", "stream_options", "logprobs", "top_logprobs", "tools", "best_of", "reasoning_effort", "parallel_tool_calls"]);
const OPENAI_RESPONSES = new Set(["model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "text", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "include", "top_logprobs", "stream", "metadata"]);
const OPENAI_EMBEDDINGS = new Set(["model", "input", "dimensions", "encoding_format"]);
const HUB_TEXT = new Set(["best_of", "decoder_input_details", "do_sample", "frequency_penalty", "max_new_tokens", "repetition_penalty", "return_full_text", "seed", "stop", "temperature", "top_k", "top_n_tokens", "top_p", "truncate", "typical_p", "watermark", "grammar", "adapter_id"]);
const HUB_CHAT = new Set(["frequency_penalty", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop", "stream_options", "temperature", "tools", "top_logprobs", "top_p"]);

const INDENT = "    ";

// A value as Python. Strings have JSON's escapes, which Python reads alike; a lone surrogate stays an escape.
function python(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return text(value);
  if (typeof value !== "object") return String(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const items = Array.isArray(value) ? value.map((item) => python(item, indent + INDENT)) : Object.entries(value).map(([key, item]) => `${text(key)}: ${python(item, indent + INDENT)}`);
  const line = `${open}${items.join(", ")}${close}`;
  return line.length + indent.length < 88 && !line.includes("\n") ? line : `${open}\n${items.map((item) => `${indent}${INDENT}${item},\n`).join("")}${indent}${close}`;
}

// Invisible characters are escaped, so that the code reads as it runs. JSON has no escape for those beyond 16 bits.
const text = (value) => escaped(JSON.stringify(value), (code) => (code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`));
const json = (value) => escaped(JSON.stringify(value), (code) => [...String.fromCodePoint(code)].flatMap((each) => each.split("")).map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join(""));

const call = (name, entries) => `${name}(\n${entries.map(([key, value]) => `${INDENT}${key}=${python(value, INDENT)},\n`).join("")})`;

function split(body, known) {
  const entries = Object.entries(body);
  const others = entries.filter(([name]) => !known.has(name));
  return [...entries.filter(([name]) => known.has(name)), ...(others.length ? [["extra_body", Object.fromEntries(others)]] : [])];
}

const base = (path) => address(path).href.replace(/\/$/, "");

const LONGEST_ARGUMENT = 100_000; // characters; Linux has a limit of 128 KiB

function curl(api, requestFor, secured) {
  const request = requestFor(api);
  const body = json(api.body(request));
  const key = secured ? ` \\\n  -H "Authorization: Bearer $API_KEY"` : "";
  const data = body.length < LONGEST_ARGUMENT ? `-d '${body.replaceAll("'", "'\\''")}'` : `-d @- <<'JSON'\n${body}\nJSON`;
  return `curl -N '${address(api.path(request)).href.replaceAll("'", "%27")}' \\\n  -H 'Content-Type: application/json'${key} \\\n  ${data}\n`;
}

function boto3(api, requestFor, secured) {
  const request = requestFor(lmi);
  const body = python(api.embeds ? { inputs: textsOf(request) } : lmi.body(request));
  const streams = request.stream && !api.embeds;
  const call_ = streams ? "invoke_endpoint_with_response_stream" : "invoke_endpoint";
  const id = secured ? `os.environ["API_KEY"]` : `"local"`;
  const model = request.severalModels ? `    TargetModel=${text(request.model)},\n` : "";
  const print = streams
    ? `for event in response["Body"]:\n    print(event["PayloadPart"]["Bytes"].decode(errors="replace"), end="", flush=True)\n`
    : `print(response["Body"].read().decode())\n`;
  return `import json\n${secured ? "import os\n" : ""}\nimport boto3\n\n# A local server needs --local-runtime. On AWS, leave out all arguments but the region.
client = boto3.client(
    "sagemaker-runtime",
    endpoint_url=${text(base("/"))},
    region_name="us-east-1",
    aws_access_key_id=${id},
    aws_secret_access_key="local",
)
body = ${body}
response = client.${call_}(
    EndpointName="local",
${model}    ContentType="application/json",
    Body=json.dumps(body),
)
${print}`;
}

const openaiClient = (secured) => `${secured ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${text(base("/v1"))}, api_key=${secured ? `os.environ["API_KEY"]` : `"none"`})
`;

function openai(shownApi, requestFor, secured) {
  if (shownApi.embeds) {
    return `${openaiClient(secured)}answer = client.${call("embeddings.create", split(embeddings.body(requestFor(embeddings)), OPENAI_EMBEDDINGS))}\nprint([each.embedding[:6] for each in answer.data])\n`;
  }
  if (shownApi.id === openaiResponses.id) {
    const request = requestFor(openaiResponses);
    const print = request.stream
      ? `for event in answer:\n    if event.type == "response.output_text.delta":\n        print(event.delta, end="", flush=True)\nprint()\n`
      : "print(answer.output_text)\n";
    return `${openaiClient(secured)}answer = client.${call("responses.create", split(openaiResponses.body(request), OPENAI_RESPONSES))}\n${print}`;
  }
  const completes = requestFor(openaiCompletions).mode === "prompt" && shownApi.id !== "openai-chat";
  const api = completes ? openaiCompletions : openaiChat;
  const request = requestFor(api);
  const said = completes ? "choices[0].text" : request.stream ? "choices[0].delta.content" : "choices[0].message.content";
  const print = request.stream
    ? `for chunk in answer:\n    if chunk.choices:\n        print(chunk.${said} or "", end="", flush=True)\nprint()\n`
    : `print(answer.${said})\n`;
  return `${openaiClient(secured)}answer = client.${call(completes ? "completions.create" : "chat.completions.create", split(api.body(request), OPENAI))}
${print}`;
}

function huggingfaceHub(shownApi, requestFor, secured) {
  const api = requestFor(tgi).mode === "chat" ? openaiChat : tgi;
  const request = requestFor(api);
  const url = `${base("/")}${request.severalModels ? `/?model_name=${encodeURIComponent(request.model)}` : ""}`;
  const client = `${secured ? "import os\n\n" : ""}from huggingface_hub import InferenceClient

client = InferenceClient(${text(url)}${secured ? `, api_key=os.environ["API_KEY"]` : ""})
`;
  if (shownApi.embeds) return `${client}print(client.feature_extraction(${python(textsOf(request))}))\n`;
  const streamed = request.stream ? [["stream", true]] : [];
  if (api === openaiChat) {
    const { model, messages, stream, ...others } = openaiChat.body(request);
    const print = stream ? `for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\nprint()\n` : `print(answer.choices[0].message.content)\n`;
    return `${client}answer = client.${call("chat_completion", [["messages", messages], ...split(others, HUB_CHAT), ...streamed])}\n${print}`;
  }
  const { inputs, parameters } = tgi.body(request);
  const known = Object.entries(parameters).filter(([name]) => HUB_TEXT.has(name));
  const print = request.stream ? `for text in answer:\n    print(text, end="", flush=True)\nprint()\n` : "print(answer)\n";
  return `${client}answer = client.${call("text_generation", [["prompt", inputs], ...known, ...streamed])}\n${print}`;
}

// Each writes the request as code, whichever API is shown. `secured` tells whether a key is needed. It is never written.
export const LANGUAGES = { curl, boto3, openai, huggingface_hub: huggingfaceHub };
