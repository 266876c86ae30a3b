// @anthropic-ai/sdk: messages, a stream with its helper, tools, token counts and errors. As the scripts in Python, it
// prints what each call returned or raised: `node anthropic_client.mjs TASK`.

import Anthropic from "@anthropic-ai/sdk";

const task = JSON.parse(process.argv[2]);
const CALL = '<tool_call>{"name": "rank_city", "arguments": {"city": "Rome", "rank": 2}}</tool_call>';
const tools = [
  { name: task.tool.function.name, description: task.tool.function.description, input_schema: task.tool.function.parameters },
];

const client = new Anthropic({ baseURL: task.echo, apiKey: "none", maxRetries: 0 });
const ask = { model: "any", max_tokens: task.max_tokens, messages: [{ role: "user", content: task.prompt }] };
const told = { model: "any", max_tokens: 2048, messages: [{ role: "user", content: CALL }], tools };

async function collected(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function helped(body) {
  const stream = client.messages.stream(body);
  const events = (await collected(stream)).map((event) => event.type);
  return { events, message: await stream.finalMessage() };
}

async function conversation() {
  const called = await client.messages.create(told);
  const use = called.content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: use.id, content: "It is sunny." };
  const messages = [...told.messages, { role: "assistant", content: called.content }, { role: "user", content: [result] }];
  return client.messages.create({ ...told, messages });
}

const calls = {
  message: () => client.messages.create(ask),
  stream: async () => collected(await client.messages.create({ ...ask, stream: true })),
  helper: () => helped(ask),
  count: () => client.messages.countTokens({ model: ask.model, messages: ask.messages }),
  count_tools: () => client.messages.countTokens({ model: ask.model, messages: ask.messages, tools }),
  auto: () => client.messages.create(told),
  auto_helper: () => helped(told),
  conversation,
  refused: () => client.messages.create({ ...ask, stop_sequences: [""] }),
  failed: async () =>
    collected(await client.messages.create({ ...ask, messages: [{ role: "user", content: "RAISE@2" }], stream: true })),
};

const outcomes = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    outcomes[name] = { returned: await call() };
  } catch (error) {
    outcomes[name] = { raised: error.constructor.name, message: String(error.message) };
  }
}
console.log(JSON.stringify(outcomes));
