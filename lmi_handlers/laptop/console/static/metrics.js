// Reads the text of /metrics, and computes rates and percentiles from two of its samples.

const LINE = /^([\w:]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Returns a function that returns a model's series: name -> {label values -> sum}. Buckets have their bound as key. If the
// server does not have `several` models, all series are those of its only one.
export function parse(text, several) {
  const models = new Map();
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    let key = "";
    let model = "";
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) {
      if (name === "model_name") model = several ? value.replace(/\\(.)/g, "$1") : "";
      else if (name !== "engine") key = value;
    }
    if (!models.has(model)) models.set(model, new Map());
    const series = models.get(model);
    if (!series.has(found[1])) series.set(found[1], new Map());
    const values = series.get(found[1]);
    values.set(key, (values.get(key) ?? 0) + Number(found[3]));
  }
  return (name) => models.get(several ? name : "") ?? new Map();
}

export const total = (series, name) => [...(series.get(name)?.values() ?? [])].reduce((sum, value) => sum + value, 0);

// Returns how much a counter has grown per second. After a restart it begins again.
export function rate(before, now, name) {
  const grown = total(now.series, name) - total(before.series, name);
  return now.time > before.time ? Math.max(0, grown) / (now.time - before.time) : 0;
}

export function growth(before, now, name) {
  return Math.max(0, total(now.series, name) - total(before.series, name));
}

// Returns the value below which this share of the observations between two samples is, or null without any.
export function percentile(before, now, name, share) {
  const old = before.series.get(`${name}_bucket`) ?? new Map();
  const buckets = [...(now.series.get(`${name}_bucket`) ?? [])].map(([bound, count]) => [bound === "+Inf" ? Infinity : Number(bound), count - (old.get(bound) ?? 0)]).sort(([one], [other]) => one - other);
  const count = buckets.at(-1)?.[1] ?? 0;
  if (count <= 0) return null;
  let [low, below] = [0, 0];
  for (const [bound, upTo] of buckets) {
    if (upTo >= share * count) {
      if (bound === Infinity) return low;
      return upTo === below ? bound : low + ((share * count - below) / (upTo - below)) * (bound - low);
    }
    [low, below] = [bound, upTo];
  }
  return low;
}
