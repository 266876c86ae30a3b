// The view of the options: their values, where these come from and who reads them, as `lmi check` prints them.

import { fetchJson } from "./connection.js";
import { $, el, say, shown, toggle } from "./dom.js";

let view = null;
let wanted = null; // {model}: what is shown or on its way

export function startConfiguration() {
  $("defaults").addEventListener("change", show);
  $("filter").addEventListener("input", show);
}

// Fetches the configuration of a model, unless it is shown already.
export async function openConfiguration(model, severalModels) {
  if (wanted?.model === model) return;
  const own = (wanted = { model });
  let [found, failure] = [null, null];
  try {
    found = await fetchJson(`/console/data/configuration${severalModels ? `?model=${encodeURIComponent(model)}` : ""}`);
  } catch (error) {
    failure = error;
  }
  if (wanted !== own) return; // another was wanted meanwhile
  view = found;
  if (failure) wanted = null;
  show();
  if (failure) say($("backend"), failure.status === 404 ? "This model has no configuration while it is not running." : shown(failure.message, 500));
  if (failure?.status === 401) throw failure;
}

// The next one is fetched again.
export function forgetConfiguration() {
  wanted = null;
}

function show() {
  if (!view) {
    for (const id of ["settings", "warnings"]) $(id).replaceChildren();
    toggle($("warnings"), false);
    return;
  }
  $("backend").textContent = `${shown(view.model)} on ${shown(view.backend)}: ${shown(view.reason, 300)}`;
  $("warnings").replaceChildren(...view.warnings.map((warning) => el("li", {}, shown(warning, 1000))));
  toggle($("warnings"), view.warnings.length > 0);
  const searched = $("filter").value.trim().toLowerCase();
  const matches = ({ key, value, source, effect }) => [key, value, source, effect].some((text) => text.toLowerCase().includes(searched));
  const settings = view.settings.filter((setting) => (setting.is_set || $("defaults").checked || searched) && (!searched || matches(setting)));
  $("settings").replaceChildren(
    el("caption", { class: "sr" }, "Options"),
    el("thead", {}, el("tr", {}, ...["Option", "Value", "Source", "Effect"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...settings.map(({ key, value, source, effect, is_set: isSet }) => el("tr", { class: isSet ? "set" : "" },
      el("td", { class: "mono" }, shown(key)), el("td", { class: "mono value" }, shown(value, 500) || "–"), el("td", {}, shown(source, 200)), el("td", {}, shown(effect, 300))))),
  );
}
