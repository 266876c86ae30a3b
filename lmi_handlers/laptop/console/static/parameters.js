// The form of an API's parameters, with the bounds that the server's OpenAPI document states.

import { $, el } from "./dom.js";

// These come first. Others are below "More", in alphabetical order.
const COMMON = ["max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty", "presence_penalty", "frequency_penalty"];
const MOST = Number.MAX_SAFE_INTEGER;

let openapi = null;
let values = {};
let suggested = "";
let shownFor = "";
let onChange = () => {};

export function useDocument(described) {
  openapi = described;
  shownFor = "";
}

// Enters the temperature that suits a model, in place of the one that suited the last one. What was entered by hand stays.
export function suggestTemperature(value) {
  const text = String(value ?? "");
  if (text === suggested) return;
  if ((values.temperature ?? "") === suggested) values.temperature = text;
  suggested = text;
  shownFor = "";
}

export function resetParameters() {
  values = {};
  shownFor = "";
}

const resolved = (schema) => (schema?.$ref ? openapi.components.schemas[schema.$ref.split("/").at(-1)] : schema);

// Returns the properties of the parameters that a body like this one may have.
function properties(path, body) {
  const content = openapi?.paths?.[path.split("?")[0]]?.post?.requestBody?.content?.["application/json"];
  const schema = resolved(content?.schema);
  const candidates = (schema?.anyOf ?? [schema]).map(resolved);
  const keys = Object.keys(body).filter((key) => key !== "stream");
  const found = candidates.find((each) => keys.every((key) => each?.properties?.[key]));
  return (body.parameters ? resolved(found?.properties?.parameters) : found)?.properties ?? {};
}

// Returns how a value is entered. What is no number, choice or text is JSON.
function fieldOf(name, schema) {
  const alternatives = (schema.anyOf ?? [schema]).map(resolved).filter((each) => each?.type !== "null");
  const type = (wanted) => alternatives.find((each) => each.type === wanted);
  const number = type("integer") ?? type("number");
  if (number) {
    const least = number.minimum ?? number.exclusiveMinimum;
    const most = number.maximum ?? number.exclusiveMaximum;
    const open = [number.exclusiveMinimum !== undefined, number.exclusiveMaximum !== undefined];
    return { name, kind: "number", whole: number.type === "integer", least, most: most > MOST ? undefined : most, open };
  }
  if (type("boolean") && alternatives.length === 1) return { name, kind: "flag" };
  const choices = alternatives.find((each) => each.enum);
  if (choices) return { name, kind: "choice", choices: choices.enum };
  const list = type("array");
  if (list && resolved(list.items)?.type === "string") return { name, kind: "list", most: list.maxItems };
  if (type("string")) return { name, kind: "text", most: type("string").maxLength };
  return { name, kind: "json" };
}

const boundsOf = ({ least, most, open = [], kind }) => {
  if (kind === "list") return "separated by commas, or JSON";
  if (kind === "json") return "JSON";
  if (kind !== "number" || (least === undefined && most === undefined)) return "";
  if (most === undefined) return `${open[0] ? "above" : "from"} ${least}`;
  if (least === undefined) return `${open[1] ? "below" : "up to"} ${most}`;
  if (!open[0] && !open[1]) return `${least} to ${most}`;
  return `${open[0] ? "above" : "from"} ${least}, ${open[1] ? "below" : "up to"} ${most}`;
};

function inputOf(field) {
  const id = `parameter-${field.shared}`;
  const bounds = boundsOf(field);
  const hint = bounds ? `${id}-bounds` : undefined;
  const common = { id, name: field.shared, "aria-describedby": hint };
  let input;
  if (field.kind === "flag" || field.kind === "choice") {
    const choices = field.kind === "flag" ? ["true", "false"] : field.choices;
    input = el("select", common, el("option", { value: "" }, "default"), ...choices.map((choice) => el("option", { value: choice }, choice)));
  } else if (field.kind === "number") {
    input = el("input", { ...common, type: "number", inputmode: field.whole ? "numeric" : "decimal", step: field.whole ? "1" : "any", min: field.least, max: field.most, placeholder: "default" });
  } else {
    input = el("input", { ...common, type: "text", maxlength: Math.min(field.most ?? 4000, 4000), placeholder: "default", autocomplete: "off" });
  }
  input.value = values[field.shared] ?? "";
  const check = () => {
    input.setCustomValidity(wrong(field, input.value));
    input.setAttribute("aria-invalid", String(!input.validity.valid));
  };
  check(); // what was entered for another API or model may be wrong here
  input.addEventListener("input", () => {
    values[field.shared] = input.value;
    check();
    onChange();
  });
  return el("div", { class: "parameter" }, el("label", { for: id }, ...breakable(field.name)), input, bounds ? el("small", { id: hint }, bounds) : null);
}

// A long name may go on in a second line after an underscore.
const breakable = (name) => name.split(/(?<=_)/).flatMap((part, index) => (index ? [el("wbr"), part] : [part]));

// What is wrong with a value, beside the bounds that HTML knows.
function wrong({ kind, whole, least, most, open = [] }, text) {
  if (text === "") return "";
  if (kind === "json" || (kind === "list" && text.startsWith("["))) {
    const value = parsed(text);
    if (value === undefined || (kind === "list" && value.some((each) => typeof each !== "string"))) return kind === "list" ? "This is not a JSON list of texts." : "This is not JSON.";
  }
  if (kind === "list") return listOf(text).length > (most ?? MOST) ? `at most ${most}` : "";
  if (kind !== "number") return "";
  const value = Number(text);
  if (whole && !Number.isSafeInteger(value)) return "must be a whole number of at most 16 digits";
  if (open[0] && value <= least) return `must be above ${least}`;
  if (open[1] && value >= most) return `must be below ${most}`;
  return "";
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const listOf = (text) => (text.startsWith("[") ? parsed(text) : text.split(",").map((part) => part.trim()).filter(Boolean)) ?? [];

// Shows the parameters of a dialect. `changed` is called after each change.
export function showParameters(dialect, request, changed) {
  const path = dialect.path(request);
  const key = `${dialect.id} ${path} ${request.mode}`;
  if (!openapi || key === shownFor) return;
  shownFor = key;
  const names = namesOf(dialect, request.mode);
  const shared = Object.fromEntries(Object.entries(names).map(([common, own]) => [own, common]));
  const own = new Set([...dialect.own, ...COMMON.filter((name) => names[name] && names[name] !== name)]);
  const fields = Object.entries(properties(path, dialect.body({ ...request, parameters: {}, probabilities: false })))
    .filter(([name]) => !own.has(name) && name !== "continuation")
    .map(([name, schema]) => fieldOf(name, schema))
    .map((field) => ({ ...field, shared: shared[field.name] ?? field.name }));
  const rank = ({ shared: name }) => COMMON.indexOf(name);
  const common = fields.filter((field) => rank(field) >= 0).sort((one, other) => rank(one) - rank(other));
  const more = fields.filter((field) => rank(field) < 0).sort((one, other) => one.name.localeCompare(other.name));
  onChange = changed;
  $("parameters").replaceChildren(
    ...common.map(inputOf),
    ...(more.length ? [el("details", {}, el("summary", {}, `${more.length} more`), ...more.map(inputOf))] : []),
    ...(fields.length ? [] : [el("p", { class: "note" }, "The parameters appear once the server has described them.")]),
  );
}

export const namesOf = (dialect, mode) => (typeof dialect.names === "function" ? dialect.names(mode) : dialect.names);

// Returns the values that are set, by the names that all APIs share. Each API takes those that it has.
export function parameterValues(dialect, request) {
  if (!openapi) return {};
  const names = namesOf(dialect, request.mode);
  const schemas = properties(dialect.path(request), dialect.body({ ...request, parameters: {}, probabilities: false }));
  const found = {};
  for (const [name, text] of Object.entries(values)) {
    if (text === "") continue;
    const own = names[name] ?? name;
    const field = schemas[own] && !dialect.own.includes(own) ? fieldOf(own, schemas[own]) : null;
    const value = field ? valueOf(field, text) : undefined;
    if (value !== undefined) found[name] = value;
  }
  return found;
}

function valueOf(field, text) {
  if (field.kind === "number") return Number.isNaN(Number(text)) ? undefined : Number(text);
  if (field.kind === "flag") return text === "true";
  if (field.kind === "list") return listOf(text);
  if (field.kind === "json") return parsed(text);
  return text;
}

// Reports what is wrong with the form, and tells whether nothing is.
export function parametersAreValid() {
  const wrong = [...$("parameters").elements].find((input) => !input.checkValidity());
  if (!wrong) return true;
  wrong.closest("details")?.setAttribute("open", "");
  wrong.reportValidity();
  return false;
}
