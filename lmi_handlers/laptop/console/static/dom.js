// Builds elements. Text is only ever set as text: nothing that a server or a model says becomes markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Control and format characters, and others that are not seen: they could make a name look like another.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

const hexadecimal = (code) => (code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`);

// Writes invisible characters out, `written(code)` for each.
export const escaped = (text, written = hexadecimal) => text.replace(INVISIBLE, (character) => written(character.codePointAt(0)));

// A name on one line: shortened, and with invisible characters written out.
export function shown(text, limit = 120) {
  const plain = String(text ?? "");
  return escaped(plain.length > limit ? plain.slice(0, limit) + "…" : plain);
}

// Changes the text of an element only if it is another: a screen reader would read it again, and a selection be lost.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function toggle(element, visible) {
  element.hidden = !visible;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.9995) return `${(seconds * 1000).toPrecision(seconds < 0.01 ? 2 : 3).replace(/\.0+$/, "")} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${Math.round(seconds / 60)} min`;
}

export function bytes(count) {
  if (count < 1000) return `${count} B`;
  const power = Math.min(3, Math.floor(Math.log10(count) / 3));
  return `${(count / 1000 ** power).toFixed(1)} ${["", "kB", "MB", "GB"][power]}`;
}

// A list of tabs: arrow keys move, as in the ARIA Authoring Practices. `choose(id)` is called with the chosen one.
export function tabs(list, entries, panel, choose) {
  const buttons = entries.map(([id, name]) =>
    el("button", { type: "button", role: "tab", id: `${list.id}-${id}`, "data-id": id, "aria-controls": panel.id, onclick: () => select(id, true) }, name));
  const select = (id, tell) => {
    for (const button of buttons) {
      const chosen = button.dataset.id === id;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      if (chosen) {
        panel.setAttribute("aria-labelledby", button.id);
        if (tell) list.scrollTo?.({ left: button.offsetLeft - 40 });
      }
    }
    if (tell) choose(id);
  };
  list.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const button = buttons.at(to % buttons.length);
    button.focus();
    select(button.dataset.id, true);
  });
  list.replaceChildren(...buttons);
  return { select: (id) => select(id, false), button: (id) => buttons.find((button) => button.dataset.id === id) };
}

// Copies a text, which is that of an element. Where the browser does not allow it, the element is selected.
export async function copy(button, element, text = element.textContent) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch { // browsers allow it on HTTPS and on this machine only
    getSelection().selectAllChildren(element);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2500);
}
