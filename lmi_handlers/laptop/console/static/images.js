// Images that are about to be sent: chosen, pasted or dropped.

import { $, el, shown, toggle } from "./dom.js";

const MOST_IMAGE = 8_000_000; // bytes
const MOST_IMAGES = 8;

let images = []; // {url, name}
let takesImages = false; // the model
let onChange = () => {};

export const imageUrls = () => images.map(({ url }) => url);

// Shows these, by their addresses. An image that was chosen before keeps its name.
export function setImages(urls) {
  images = urls.map((url, index) => images.find((each) => each.url === url) ?? { url, name: `image ${index + 1}` });
  showImages();
}

// Tells whether the model takes images.
export function takeImages(are) {
  takesImages = are;
  toggle($("image-box"), are);
}

function showImages(note = "") {
  $("images").replaceChildren(...images.map((image, index) => el("figure", {}, el("img", { src: image.url, alt: shown(image.name, 100) }), el("button", { type: "button", class: "quiet", "aria-label": `Remove ${shown(image.name, 40)}`, onclick: () => removeImage(index) }, "×"))));
  toggle($("images"), images.length > 0);
  $("image-note").textContent = note;
  toggle($("image-note"), note !== "");
  onChange();
}

function removeImage(index) {
  images.splice(index, 1);
  showImages();
  $("image").focus();
}

async function addImages(files, areTaken = true) {
  const notes = [];
  for (const file of files) {
    const why = !areTaken ? "this model takes no images" : file.size > MOST_IMAGE ? `it has more than ${MOST_IMAGE / 1e6} MB` : images.length >= MOST_IMAGES ? `there are ${MOST_IMAGES} already` : "";
    const url = why ? null : await dataUrl(file);
    if (url) images.push({ url, name: file.name });
    else notes.push(`${shown(file.name, 60)} was left out: ${why || "it cannot be read"}.`);
  }
  $("image").value = "";
  showImages(notes.slice(0, 5).join(" "));
}

const dataUrl = (file) => new Promise((resolve) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => resolve(null);
  reader.readAsDataURL(file);
});

const imagesIn = (transfer) => [...(transfer?.files ?? [])].filter(({ type }) => type.startsWith("image/"));

// Calls `changed` whenever there are other images.
export function startImages(changed) {
  onChange = changed;
  $("image").addEventListener("change", (event) => addImages([...event.target.files]));
  $("compose").addEventListener("paste", (event) => {
    const files = imagesIn(event.clipboardData);
    if (!files.length) return;
    event.preventDefault();
    addImages(files, takesImages);
  });
  $("compose").addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault(); // or else, the browser opens what is dropped
  });
  $("compose").addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    addImages(imagesIn(event.dataTransfer), takesImages);
  });
}
