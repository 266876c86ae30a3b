// Plots of the last minutes, drawn as SVG. Their figures are also text, for those who do not see them.

import { el, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [300, 84];
const SPAN = 300; // seconds

export class Plot {
  #lines;
  #points = [];
  #format;
  #top;

  // `lines` has the name of each line, `format` writes a value, and `top` is the end of the axis, if it is fixed.
  constructor(title, lines, format, top = null) {
    this.#format = format;
    this.#top = top;
    this.#lines = lines.map((name, index) => ({ name, path: svg("path", { class: `line line-${index}` }), area: svg("path", { class: `area area-${index}` }), value: el("b", {}, "–") }));
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.picture.append(...[0.25, 0.5, 0.75].map((share) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * share, y2: HEIGHT * share })));
    this.picture.append(...this.#lines.flatMap(({ path, area }) => [area, path]));
    this.most = el("span", { class: "most" });
    const legend = el("span", { class: "legend" }, ...this.#lines.map(({ name, value }, index) => el("span", { class: `key-${index}` }, value, name ? ` ${name}` : "")));
    this.element = el("figure", { class: "panel plot" }, el("figcaption", {}, el("h3", {}, title), legend), el("div", { class: "canvas" }, this.picture, this.most), el("p", { class: "axis", "aria-hidden": "true" }, el("span", {}, "5 min ago"), el("span", {}, "now")));
  }

  // Adds a value of each line at a time in seconds. null leaves a gap.
  add(time, values) {
    this.#points.push([time, ...values]);
    while (this.#points[0][0] < time - SPAN - 60) this.#points.shift();
  }

  clear() {
    this.#points = [];
    for (const { path, area, value } of this.#lines) {
      path.setAttribute("d", "");
      area.setAttribute("d", "");
      value.textContent = "–";
    }
  }

  draw() {
    const now = this.#points.at(-1)?.[0] ?? 0;
    const all = this.#points.flatMap(([, ...values]) => values).filter((value) => value !== null);
    const top = this.#top ?? nice(Math.max(...all, 0));
    this.most.textContent = top ? this.#format(top) : "";
    this.#lines.forEach(({ path, area, value }, index) => {
      const parts = [];
      let part = [];
      for (const [time, ...values] of this.#points) {
        if (values[index] === null) {
          if (part.length) parts.push(part);
          part = [];
          continue;
        }
        const x = WIDTH * (1 - (now - time) / SPAN);
        part.push([x.toFixed(1), (HEIGHT - 1 - (HEIGHT - 3) * Math.min(1, values[index] / (top || 1))).toFixed(1)]);
      }
      if (part.length) parts.push(part);
      path.setAttribute("d", parts.map((each) => `M${each.map((point) => point.join(" ")).join("L")}${each.length === 1 ? "h2" : ""}`).join(""));
      area.setAttribute("d", parts.map((each) => `M${each[0][0]} ${HEIGHT}L${each.map((point) => point.join(" ")).join("L")}L${each.at(-1)[0]} ${HEIGHT}Z`).join(""));
      const last = this.#points.at(-1)?.[index + 1];
      value.textContent = last === null || last === undefined ? "–" : this.#format(last);
    });
  }
}

// The next of 1, 2 or 5 times a power of ten.
export function nice(value) {
  if (!(value > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
