"""The page that `GET /` shows in a browser: the model, its state and example calls. No scripts, nothing external."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from flask import Flask, Response, request

from lmi_handlers import __version__
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.web.front_end_errors import shown_routes

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{model} - lmi-handlers</title>
<style>
body {{ max-width: 48rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; color-scheme: light dark }}
pre {{ padding: .75rem; overflow-x: auto; background: #8882; border-radius: .25rem }}
</style>
<h1>{model}</h1>
<p>This is lmi-handlers {version}, a server for a language model. It speaks the APIs of LMI, TGI, OpenAI, Anthropic and SageMaker.
The model is <strong>{state}</strong>.</p>
<h2>Try it</h2>
<pre>curl {url}/invocations -H 'Content-Type: application/json' \\
  -d '{{"inputs": "What is Deep Learning?", "parameters": {{"max_new_tokens": 64}}}}'</pre>
<pre>curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"messages": [{{"role": "user", "content": "What is Deep Learning?"}}], "temperature": 0.2}}'</pre>
<pre>curl -N {url}/generate_stream -H 'Content-Type: application/json' \\
  -d '{{"inputs": "What is Deep Learning?", "parameters": {{"max_new_tokens": 64}}}}'</pre>
<p>If the server has an API key, add <code>-H "Authorization: Bearer $API_KEY"</code>.
Chats need a model with a chat template.</p>
<h2>Routes</h2>
<ul>
{routes}
</ul>
<p>Requests and responses are described in <a href="/openapi.json">/openapi.json</a>. Metrics are at
<a href="/metrics">/metrics</a>, and the model's limits at <a href="/info">/info</a>.</p>
</html>
"""


def add_start_page(app: Flask, model: ServedModel) -> None:
    """Make `GET /` show the page to clients that accept HTML. All others still get the answer of TGI's route."""
    health: Any = app.view_functions["GET /"]

    def view() -> Response:
        answer: Response = health()
        if not any(name == "text/html" and quality > 0 for name, quality in request.accept_mimetypes):
            return answer
        page = start_page(
            model=model.name,
            state="ready" if answer.status_code == 200 else f"not ready: {model.phase}",
            url=request.host_url,
            version=__version__,
            routes=shown_routes(),
        )
        response = Response(page, answer.status_code, _HEADERS, content_type="text/html; charset=utf-8")
        response.vary.add("accept")
        return response

    app.view_functions["GET /"] = view


def start_page(*, model: str, state: str, url: str, version: str, routes: Iterable[str]) -> str:
    """Return the page. `url` is how the browser reached this server; each of `routes` reads like `POST /generate`."""
    items = "\n".join(f"<li><code>{escape(route)}</code></li>" for route in sorted(routes, key=_path_first))
    return _PAGE.format(
        model=escape(model), state=escape(state), url=escape(url.rstrip("/")), version=escape(version), routes=items
    )


def _path_first(route: str) -> tuple[str, str]:
    method, _, path = route.partition(" ")
    return path, method
