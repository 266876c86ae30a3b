// OpenAI's embeddings, one per line of the prompt. https://platform.openai.com/docs/api-reference/embeddings

import { named } from "./common.js";

const MOST = 12; // texts whose similarities are shown
const SHOWN = 6; // numbers of an embedding

export const textsOf = ({ prompt }) => {
  const lines = prompt.split("\n").filter((line) => line.trim());
  return lines.length ? lines : [prompt];
};

const dot = (one, other) => one.reduce((sum, value, index) => sum + value * other[index], 0);
const lengthOf = (vector) => Math.sqrt(dot(vector, vector));
const row = (cells) => `| ${cells.join(" | ")} |\n`;

// Writes the embeddings as a table, and how similar each is to the others.
function described(vectors) {
  const shown = vectors.slice(0, MOST);
  const lengths = shown.map(lengthOf);
  const similarity = (one, other) => (dot(shown[one], shown[other]) / (lengths[one] * lengths[other] || 1)).toFixed(3);
  const numbers = shown.map((_, index) => index + 1);
  const table = (head, rows) => row(head) + row(head.map(() => ":-")) + rows.map(row).join("");
  return [
    `${vectors.length} ${vectors.length === 1 ? "embedding" : "embeddings"} of ${vectors[0].length} numbers${vectors.length > MOST ? `. The first ${MOST}:` : ""}`,
    table(["Text", "Length", "Begins with"], shown.map((vector, index) => [index + 1, lengths[index].toFixed(3), `${vector.slice(0, SHOWN).map((value) => value.toFixed(4)).join(", ")}${vector.length > SHOWN ? " …" : ""}`])),
    ...(shown.length > 1 ? ["Cosine similarity", table(["Text", ...numbers], numbers.map((number) => [number, ...numbers.map((other) => similarity(number - 1, other - 1))]))] : []),
  ].join("\n\n");
}

// The vectors of OpenAI's lists. With `encoding_format=base64`, they are 32-bit floats.
function vectorOf({ embedding }) {
  if (typeof embedding !== "string") return embedding;
  const data = Uint8Array.from(atob(embedding), (character) => character.charCodeAt(0));
  return [...new Float32Array(data.buffer, 0, data.length >> 2)];
}

export default {
  id: "embeddings",
  name: "Embeddings",
  embeds: true,
  chats: false,
  prompts: true,
  path: () => "/v1/embeddings",
  names: {},
  own: ["model", "input", "user"],
  body: (request) => ({ model: request.model, input: textsOf(request), ...named(request, {}) }),
  read(record) {
    const vectors = record.data?.map(vectorOf);
    return { error: record.error?.message ?? record.message, text: vectors?.length ? described(vectors) : "", prompt: record.usage?.prompt_tokens };
  },
};
