// One request in one API, and what is read from its answer while it arrives.

import { send } from "./connection.js";
import { shown } from "./dom.js";
import { Records } from "./records.js";

const MOST_TEXT = 1_000_000;
const MOST_CALLS = 100;

const textOf = (value) => (typeof value === "string" ? value : "");

export class Outcome {
  text = "";
  reasoning = "";
  calls = []; // {id, name, arguments}
  finish = null;
  prompt = null; // tokens
  generated = null; // tokens
  tokens = 0; // that have arrived one by one
  error = "";

  // Adds what a dialect has read from a record.
  add(read) {
    const { error, finish, prompt, generated } = read;
    if (error) this.error = typeof error === "string" ? error : JSON.stringify(error);
    if (this.text.length < MOST_TEXT) this.text += textOf(read.text);
    if (this.reasoning.length < MOST_TEXT) this.reasoning += textOf(read.reasoning);
    this.tokens += read.tokens?.length ?? 0;
    for (const call of read.calls ?? []) this.#addCall(call);
    if (finish) this.finish = String(finish);
    if (prompt != null) this.prompt = prompt;
    if (generated != null) this.generated = generated;
  }

  #addCall({ index = this.calls.length, id, function: called = {} }) {
    if (!(index >= 0 && index < MOST_CALLS)) return;
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= textOf(id);
    call.name += textOf(called.name);
    if (call.arguments.length < MOST_TEXT) call.arguments += textOf(called.arguments);
  }
}

// Sends a request. `began(record)` is called with the head of the answer, `arrived(reads, record)` with what each piece of
// it says. Returns the record of what was on the wire.
export async function exchange(api, request, outcome, signal, { began, arrived }) {
  let reader = null;
  const read = (found) => found.map((each) => readOne(api, each, outcome));
  const record = await send(api.path(request), api.body(request), signal, (head) => {
    reader = new Records(head.type);
    began(head);
  }, (bytes, current) => arrived(read(reader.feed(bytes)), current));
  if (reader && !record.stopped) arrived(read(reader.finish()), record);
  if (record.status >= 400) outcome.error ||= `The server answered with status ${record.status}.`;
  else if (record.broken) outcome.error = record.status ? "The connection broke in the middle of the answer." : "The server could not be reached.";
  else if (reader?.isStream && !record.stopped && !outcome.finish) outcome.error ||= "The answer ended before it was complete.";
  return record;
}

function readOne(api, each, outcome) {
  try {
    if (each.unreadable !== undefined) throw new TypeError(each.unreadable);
    const found = api.read(each);
    const tokens = tokensOf(textOf(found.text), found.tokens);
    outcome.add(found);
    return { text: textOf(found.text), reasoning: textOf(found.reasoning), tokens, tops: found.tops };
  } catch (error) {
    outcome.error ||= `This is not an answer of this API: ${shown(error.message, 200)}`;
    return { text: "", reasoning: "", tokens: null };
  }
}

// The tokens that spell the text, without the one that ends an answer. null if they do not, as with half a character.
function tokensOf(text, tokens = []) {
  let length = 0;
  const end = tokens.findIndex((token) => {
    const follows = length < text.length && text.startsWith(token.text, length);
    length += follows ? token.text.length : 0;
    return !follows;
  });
  return length === text.length ? tokens.slice(0, end < 0 ? tokens.length : end) : null;
}
