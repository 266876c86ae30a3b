// Splits an answer into records: the data of server-sent events, JSON lines, or one document.

const MOST_REST = 32_000_000; // characters of a record that has not ended

export class Records {
  #decoder = new TextDecoder();
  #rest = "";
  #kind;

  constructor(type) {
    this.#kind = type.startsWith("text/event-stream") ? "events" : type.includes("jsonlines") ? "lines" : "document";
  }

  // Tells whether there are records before the end.
  get isStream() {
    return this.#kind !== "document";
  }

  // Returns the records that are complete with these bytes.
  feed(bytes) {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    if (this.#rest.length > MOST_REST) {
      this.#rest = "";
      return [{ unreadable: "a record of it is too long" }];
    }
    if (this.#kind === "document") return [];
    const parts = this.#rest.split(this.#kind === "events" ? /\r?\n\r?\n/ : "\n");
    this.#rest = parts.pop();
    return parts.flatMap((part) => this.#data(part));
  }

  // Returns what is left at the end.
  finish() {
    const rest = this.#rest + this.#decoder.decode();
    this.#rest = "";
    return rest.trim() ? this.#data(rest) : [];
  }

  #data(part) {
    const text = this.#kind !== "events" ? part
      : part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n");
    if (!text.trim() || text === "[DONE]") return [];
    try {
      return [JSON.parse(text)];
    } catch {
      return [{ unreadable: text }];
    }
  }
}
