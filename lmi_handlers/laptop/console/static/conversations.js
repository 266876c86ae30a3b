// Conversations that this browser keeps, so that a reload does not lose them. The server has none of them, and the API key
// is in none. What is stored is checked when it is read: another version of the page, or a page beside this one, wrote it.

const KEY = "lmi-console-conversations";
const MOST = 50;
const MOST_CHARACTERS = 2_000_000; // of all together; browsers keep about five million
const MOST_MESSAGES = 500;
const ROLES = ["user", "assistant", "tool"];

const isText = (value) => typeof value === "string";
const isCall = (call) => isText(call?.id) && isText(call.name) && isText(call.arguments);
const isMessage = (each) => ROLES.includes(each?.role) && isText(each.content) && (each.role !== "tool" || isCall(each.call))
  && (each.calls === undefined || (Array.isArray(each.calls) && each.calls.every(isCall)))
  && (each.reasoning === undefined || isText(each.reasoning))
  && (each.images === undefined || (Array.isArray(each.images) && each.images.every((url) => isText(url) && url.startsWith("data:image/"))));
const isConversation = (each) => isText(each?.id) && Array.isArray(each.messages) && each.messages.length > 0 && each.messages.length <= MOST_MESSAGES && each.messages.every(isMessage);

// Returns all of them, the last one first: {id, messages}.
export function conversations() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter(isConversation).slice(0, MOST) : [];
  } catch { // none, or the browser keeps nothing
    return [];
  }
}

const fits = (all) => JSON.stringify(all).length <= MOST_CHARACTERS;
const withoutImages = (messages) => messages.map(({ images, ...others }) => others);

// Keeps a conversation. There is room for a number of them, and the oldest goes first.
export function keep(id, messages) {
  const others = conversations().filter((each) => each.id !== id);
  const whole = [{ id, messages }, ...others].slice(0, MOST);
  const all = fits(whole) ? whole : [{ id, messages: withoutImages(messages) }, ...whole.slice(1)];
  while (all.length > 1 && !fits(all)) all.pop();
  if (fits(all)) store(all);
}

export function forget(id) {
  store(conversations().filter((each) => each.id !== id));
}

function store(all) {
  try {
    if (all.length) localStorage.setItem(KEY, JSON.stringify(all));
    else localStorage.removeItem(KEY);
  } catch { // it is full, or the browser keeps nothing
  }
}
