// Writes a request as code that can be pasted: curl, boto3, openai and huggingface_hub.

import { address } from "./connection.js";
import lmi from "./dialects/lmi.js";
import openaiChat from "./dialects/openai_chat.js";
import openaiCompletions from "./dialects/openai_completions.js";
import tgi from "./dialects/tgi.js";

// Parameters of the methods of these libraries. Others go into `extra_body`.
const OPENAI = new Set(["model", "messages", "prompt", "max_tokens", "temperature", "top_p", "n", "seed", "stop", "presence_penalty", "frequency_penalty", "stream", "stream_options", "logprobs", "top_logprobs", "tools", "best_of", "reasoning_effort", "parallel_tool_calls"]);
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

// Other invisible characters are escaped, too, so that the code reads as it runs.
const text = (value) => JSON.stringify(value).replace(/[\u007f-\u00a0\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

const call = (name, entries) => `${name}(\n${entries.map(([key, value]) => `${INDENT}${key}=${python(value, INDENT)},\n`).join("")})`;

function split(body, known) {
  const entries = Object.entries(body);
  const others = entries.filter(([name]) => !known.has(name));
  return [...entries.filter(([name]) => known.has(name)), ...(others.length ? [["extra_body", Object.fromEntries(others)]] : [])];
}

const base = (path) => address(path).href.replace(/\/$/, "");

export function curl(dialect, request, secured) {
  const body = text(dialect.body(request)).replaceAll("'", "'\\''");
  const key = secured ? ` \\\n  -H "Authorization: Bearer $API_KEY"` : "";
  return `curl -N '${address(dialect.path(request)).href.replaceAll("'", "%27")}' \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${body}'\n`;
}

export function boto3(dialect, request, secured) {
  const body = python(lmi.body(request));
  const call_ = request.stream ? "invoke_endpoint_with_response_stream" : "invoke_endpoint";
  const id = secured ? `os.environ["API_KEY"]` : `"local"`;
  const model = request.severalModels ? `    TargetModel=${text(request.model)},\n` : "";
  const print = request.stream
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

export function openai(dialect, request, secured) {
  const completes = request.mode === "prompt" && dialect.id !== "openai-chat";
  const api = completes ? openaiCompletions : openaiChat;
  const said = completes ? "choices[0].text" : request.stream ? "choices[0].delta.content" : "choices[0].message.content";
  const print = request.stream
    ? `for chunk in answer:\n    if chunk.choices:\n        print(chunk.${said} or "", end="", flush=True)\nprint()\n`
    : `print(answer.${said})\n`;
  return `${secured ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${text(base("/v1"))}, api_key=${secured ? `os.environ["API_KEY"]` : `"none"`})
answer = client.${call(completes ? "completions.create" : "chat.completions.create", split(api.body(request), OPENAI))}
${print}`;
}

export function huggingfaceHub(dialect, request, secured) {
  const client = `${secured ? "import os\n\n" : ""}from huggingface_hub import InferenceClient

client = InferenceClient(${text(base("/"))}${secured ? `, api_key=os.environ["API_KEY"]` : ""})
`;
  if (request.mode === "chat") {
    const { model, messages, stream, ...others } = openaiChat.body(request);
    const entries = [["messages", messages], ...split(others, HUB_CHAT), ...(stream ? [["stream", true]] : [])];
    const print = stream ? `for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\nprint()\n` : `print(answer.choices[0].message.content)\n`;
    return `${client}answer = client.${call("chat_completion", entries)}\n${print}`;
  }
  const { inputs, parameters } = tgi.body(request);
  const known = Object.entries(parameters).filter(([name]) => HUB_TEXT.has(name));
  const entries = [["prompt", inputs], ...known, ...(request.stream ? [["stream", true]] : [])];
  return `${client}answer = client.${call("text_generation", entries)}\n${request.stream ? `for text in answer:\n    print(text, end="", flush=True)\nprint()\n` : "print(answer)\n"}`;
}
