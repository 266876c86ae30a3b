// Shows the OpenAPI document with Swagger UI. On a server with several models, that of the chosen one.
"use strict";

// Swagger UI writes HTML that it has cleaned with DOMPurify. Nothing may write scripts or load them.
window.trustedTypes?.createPolicy("default", { createHTML: (html) => html });

const dark = matchMedia("(prefers-color-scheme: dark)");
const adapt = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", adapt);
adapt();

function show(model) {
  const url = model ? `openapi.json?model_name=${encodeURIComponent(model)}` : "openapi.json";
  document.getElementById("document").href = url;
  const shown = document.createElement("div");
  document.getElementById("swagger-ui").replaceChildren(shown);
  SwaggerUIBundle({
    url,
    domNode: shown,
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    docExpansion: "list",
    filter: true,
    persistAuthorization: false,
    tryItOutEnabled: true,
    validatorUrl: null, // or else, it asks another host
  });
}

async function models() {
  const answer = await fetch("v1/models");
  const { data } = await answer.json();
  return data.filter((each) => !each.parent).map((each) => each.id);
}

async function start() {
  const names = await models().catch(() => []); // Swagger UI says that the server does not answer
  if (names.length < 2) return show(names[0]);
  const select = document.getElementById("model");
  select.append(...names.map((name) => new Option(name, name)));
  select.addEventListener("change", () => show(select.value));
  document.getElementById("model-choice").hidden = false;
  show(select.value);
}

start();
