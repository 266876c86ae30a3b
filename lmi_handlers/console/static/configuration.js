// The view of the options: their values, where these come from and who reads them, as `lmi check` prints them.

import { fetchJson } from "./connection.js";
import { $, el, shown, toggle } from "./dom.js";

let view = null;
let shownFor = null;

export function startConfiguration() {
  $("defaults").addEventListener("change", show);
  $("filter").addEventListener("input", show);
}

// Fetches the configuration of a model, unless it is shown already.
export async function openConfiguration(model, severalModels) {
  if (view && shownFor === model) return;
  try {
    view = await fetchJson(`/console/data/configuration${severalModels ? `?model=${encodeURIComponent(model)}` : ""}`);
    shownFor = model;
    show();
  } catch (error) {
    view = null;
    $("settings").replaceChildren();
    $("backend").textContent = error.status === 404 ? "This model has no configuration while it is not running." : error.message;
    if (error.status === 401) throw error;
  }
}

export function forgetConfiguration() {
  view = null;
}

function show() {
  if (!view) return;
  $("backend").textContent = `${shown(view.model)} on ${shown(view.backend)}: ${shown(view.reason, 300)}`;
  $("warnings").replaceChildren(...view.warnings.map((warning) => el("li", {}, shown(warning, 1000))));
  toggle($("warnings"), view.warnings.length > 0);
  const wanted = $("filter").value.trim().toLowerCase();
  const matches = ({ key, value, source, effect }) => [key, value, source, effect].some((text) => text.toLowerCase().includes(wanted));
  const settings = view.settings.filter((setting) => (setting.is_set || $("defaults").checked || wanted) && (!wanted || matches(setting)));
  $("settings").replaceChildren(
    el("caption", { class: "sr" }, "Options"),
    el("thead", {}, el("tr", {}, ...["Option", "Value", "Source", "Effect"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...settings.map(({ key, value, source, effect, is_set: isSet }) => el("tr", { class: isSet ? "set" : "" },
      el("td", { class: "mono" }, shown(key)), el("td", { class: "mono value" }, shown(value, 500) || "–"), el("td", {}, shown(source, 200)), el("td", {}, shown(effect, 300))))),
  );
}
