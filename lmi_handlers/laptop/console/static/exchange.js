// One request in one API, and what is read from its answer while it arrives. The rest of an answer that a deadline has cut
// is asked for with the token in its end.

import { send } from "./connection.js";
import { shown } from "./dom.js";
import { Records } from "./records.js";

const MOST_TEXT = 1_000_000;
const MOST_CALLS = 100;
const MOST_LATE = 3; // continuations in succession that get no text before the server's time limit
const MOST_PARTS = 1000;
const MOST_SILENT = 10; // parts in succession that bring no text

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
  parts = 0; // requests that have been sent
  opening = null; // the record of the first one
  continuation = null; // with which the rest of the answer is asked for
  #generatedBefore = 0; // in the parts before
  #repeatsCalls = false;

  // Begins the answer, or the rest of it.
  begin() {
    this.parts += 1;
    this.#generatedBefore = this.generated ?? 0;
    this.#repeatsCalls = this.parts > 1;
    this.finish = this.continuation = null;
    this.error = "";
  }

  // Adds what a dialect has read from a record.
  add(read) {
    const { error, finish, prompt, generated, continuation } = read;
    if (typeof continuation === "string" && continuation) this.continuation = continuation;
    if (error) this.error = typeof error === "string" ? error : JSON.stringify(error);
    if (this.text.length < MOST_TEXT) this.text += textOf(read.text);
    if (this.reasoning.length < MOST_TEXT) this.reasoning += textOf(read.reasoning);
    this.tokens += read.tokens?.length ?? 0;
    for (const call of read.calls ?? []) this.#addCall(call);
    if (finish) this.finish = String(finish);
    if (prompt != null) this.prompt = prompt;
    if (generated != null) this.generated = this.#generatedBefore + generated;
  }

  #addCall({ index, id, function: called = {} }) {
    if (index === undefined) { // a whole one, and the last part has all of them
      if (this.#repeatsCalls) this.calls = [];
      this.#repeatsCalls = false;
      index = this.calls.length;
    }
    if (!(index >= 0 && index < MOST_CALLS)) return;
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= textOf(id);
    call.name += textOf(called.name);
    if (call.arguments.length < MOST_TEXT) call.arguments += textOf(called.arguments);
  }
}

// Sends a request, and others until its answer is whole. `began(record)` is called with the head of each part of the answer,
// `arrived(reads, record)` with what each piece of it says. Returns the record of the last part that was on the wire.
export async function exchange(api, request, outcome, signal, events) {
  const body = api.body(request);
  let sent = body;
  let late = 0;
  let silent = 0;
  while (true) {
    const length = outcome.text.length + outcome.reasoning.length;
    outcome.begin();
    const record = await exchangePart(api, api.path(request), sent, outcome, signal, events);
    if (record.status === 504 && sent !== body && late < MOST_LATE) {
      late += 1;
    } else if (record.stopped || outcome.error || !outcome.continuation) {
      return record;
    } else {
      late = 0;
      silent = outcome.text.length + outcome.reasoning.length > length ? 0 : silent + 1;
      if (outcome.parts >= MOST_PARTS || silent === MOST_SILENT) {
        outcome.error = "The answer is not complete: the server says again and again that there is more.";
        return record;
      }
      sent = { ...body, continuation: outcome.continuation };
    }
  }
}

async function exchangePart(api, path, body, outcome, signal, { began, arrived }) {
  let reader = null;
  const read = (found) => found.map((each) => readOne(api, each, outcome));
  const record = await send(path, body, signal, (head) => {
    outcome.opening ??= head;
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
    outcome.add({ continuation: continuationIn(each), ...found });
    return { text: textOf(found.text), reasoning: textOf(found.reasoning), tokens, tops: found.tops };
  } catch (error) {
    outcome.error ||= `This is not an answer of this API: ${shown(error.message, 200)}`;
    return { text: "", reasoning: "", tokens: null };
  }
}

// The token of an answer that a deadline has cut, in a record of any API.
function continuationIn(record) {
  const whole = Array.isArray(record) && record.length === 1 ? record[0] : record;
  const places = [whole, whole.details, whole.response, whole.delta, whole.choices?.[0]];
  return places.find((place) => place?.continuation)?.continuation;
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
