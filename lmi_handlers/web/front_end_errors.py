"""Errors of the front end itself, such as 403, 404 and 405, in the format of the requested API.

The path decides which API that is: each API names its path prefixes. Prefixes of APIs that are not supported are listed
here, as are those of the SageMaker runtime, which may be switched off. All other paths, including the invoke routes, get
DJL Serving's format.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec
from flask import Response, current_app, request
from werkzeug.exceptions import HTTPException, NotFound

from lmi_handlers.apis.api import Api
from lmi_handlers.apis.base import front_end_json
from lmi_handlers.apis.management import ManagementDialect, status_of
from lmi_handlers.core.errors import LMIError
from lmi_handlers.serving.custom_model import CustomModel

Shape = Callable[[int, str, str], object]
"""Makes the error document from `(status, kind, message)`. `kind` is Werkzeug's exception name, e.g. `NotFound`."""

_HIDDEN = ("HEAD", "OPTIONS")
_PAGES = ("console.", "docs.")
"""Views of pages for browsers, which are no routes of an API."""


class FrontEndErrors:
    """Answers requests that the router or the access control refused."""

    def __init__(self, apis: Iterable[Api], absent: Mapping[str, str]) -> None:
        """`absent` has the messages for paths that this server does not have, but others do."""
        self._absent = absent
        shapes = _SHAPES | {prefix: api.router_error for api in apis for prefix in api.prefixes}
        self._shapes = sorted(shapes.items(), key=lambda item: -len(item[0]))

    def answer(self, error: HTTPException) -> Response:
        """Render the error. A 404 of the router suggests another route, and a 405 names the allowed methods."""
        status, kind, message = error.code or 500, type(error).__name__, str(error.description)
        methods = sorted(set(getattr(error, "valid_methods", None) or ()) - set(_HIDDEN))
        if status == 404 and message == NotFound.description:  # no view has said anything better
            message = self._absent.get(request.path) or _missing(request.path)
        elif status == 405:
            message = f"{request.method} is not allowed on {request.path[:200]}; allowed: {', '.join(methods)}"
        response = self._document(request.path, status, kind, message)
        if status == 405:
            response.headers["Allow"] = ", ".join(methods)
        return response

    def refusal(self, error: LMIError) -> Response:
        """Render an error for which a request reached no model."""
        if (shape := self._shape(request.path)) is None:
            reply = ManagementDialect().error(error)
            return Response(reply.body, reply.status, content_type=reply.content_type)
        status = status_of(error)
        document = shape(status, type(error).__name__, str(error))
        return Response(msgspec.json.encode(document), status, content_type="application/json")

    def _shape(self, path: str) -> Shape | None:
        return next((shape for prefix, shape in self._shapes if _below(path, prefix)), None)

    def _document(self, path: str, status: int, kind: str, message: str) -> Response:
        shape = self._shape(path)
        encode = front_end_json if shape is None else msgspec.json.encode
        document = (shape or _djl)(status, kind, message)
        response = Response(encode(document), status, content_type="application/json")
        if shape is _runtime:
            kinds = {403: "AccessDeniedException", 404: "ResourceNotFoundException"}
            response.headers["x-amzn-ErrorType"] = kinds.get(status, kind)
        return response


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def _ollama(status: int, kind: str, message: str) -> object:  # noqa: ARG001  `Shape`'s
    return {"error": message}


def _runtime(status: int, kind: str, message: str) -> object:  # noqa: ARG001  `Shape`'s
    return {"Message": message}


def _djl(status: int, kind: str, message: str) -> object:
    kinds = {404: "ResourceNotFoundException", 405: "MethodNotAllowedException"}
    return {"code": status, "type": kinds.get(status, kind), "message": message}


_SHAPES: dict[str, Shape] = {"/api": _ollama, "/endpoints": _runtime}
"""By path prefix."""


# Suggestions for unknown routes


def _missing(path: str) -> str:
    """The message for an unknown route. It suggests a similar route, else the API's own routes, else the full list."""
    start = f"{path[:200]} is not a route of this server"
    if _below(path, "/endpoints"):
        if "local_runtime" in current_app.blueprints:
            return f"{start}; the SageMaker runtime's are {_listed('/endpoints')}"
        return f"{start}: start it with --local-runtime for the SageMaker runtime's API"
    if isinstance(current_app.extensions["lmi_model"], CustomModel):
        return f"{start}: the model is served by its own code, which answers POST /invocations with any body"
    if _below(path, "/v1/responses"):
        return f"{start}: responses are not stored"
    if option := _added_by(path):
        return f"{start}: {option} adds it"
    if any(_below(path, prefix) for prefix in _SLEEP):
        return f"{start}: a model sleeps after PUT /models/<model>?min_worker=0, which lmi serve --model-store has"
    if re.fullmatch("/models/[^/]+", path):
        return f"{start}: lmi serve --model-store adds it"
    if meant := _meant(path):
        return f"{start}; did you mean {meant}?"
    instead = next((route for prefix, route in _INSTEAD.items() if _below(path, prefix)), "")
    if instead in _routes().values():
        return f"{start}, which does not support this API; use {instead}"
    if _below(path, "/v1"):
        return f"{start}; below /v1 there are {_listed('/v1')}"
    return f"{start}; GET /openapi.json lists all routes"


_ADDED_BY = {
    "/adapters": "option.enable_lora=true",
    "/v1/load_lora_adapter": "option.allow_runtime_lora_updating=true with option.enable_lora=true",
    "/v1/unload_lora_adapter": "option.allow_runtime_lora_updating=true with option.enable_lora=true",
    "/console": "option.console=true",
    "/explain": "option.console=true",
    "/docs": "option.console=true, with the extra swagger-ui,",
}
"""Options without which there is nothing below a path."""


def _added_by(path: str) -> str:
    """The option that would add the path to this server, or "" if there is none."""
    option = next((option for prefix, option in _ADDED_BY.items() if _below(path, prefix)), "")
    rules = [rule.rule for rule in current_app.url_map.iter_rules()] if option else []
    return "" if any(_below(rule, prefix) for prefix in _ADDED_BY if _below(path, prefix) for rule in rules) else option


_INSTEAD = {
    "/api": "POST /v1/chat/completions",
    "/v2": "POST /v1/chat/completions",
    **dict.fromkeys(("/version", "/server_info"), "GET /info"),
    **dict.fromkeys(("/load", "/server/metrics"), "GET /metrics"),
}
"""Replacements for APIs that are not supported, by path prefix. docs/migrating.md has those of vLLM and DJL Serving."""

_SLEEP = ("/sleep", "/wake_up", "/is_sleeping")
"""vLLM's routes."""


def _meant(path: str) -> str:
    """The route that differs from the path only by a slash, a `/v1` prefix or a few letters, or ""."""
    routes = _routes()
    plain = path.rstrip("/")
    for guess in (plain, f"/v1{plain}", plain.removeprefix("/v1"), plain.removeprefix("/v1/v1")):
        if guess in routes:
            return routes[guess]
    close = difflib.get_close_matches(plain[:100], routes, n=1, cutoff=0.85)
    return routes[close[0]] if close else ""


def _listed(prefix: str) -> str:
    return ", ".join(shown for path, shown in _routes().items() if _below(path, prefix))


def shown_routes() -> list[str]:
    """Return all routes of this server, each like `POST /generate`."""
    return list(_routes().values())


def _routes() -> dict[str, str]:
    """Return the display form of each path, like `GET/POST /ping`."""
    allowed: dict[str, set[str]] = {}
    for rule in current_app.url_map.iter_rules():
        if rule.endpoint.startswith(_PAGES):
            continue
        allowed.setdefault(rule.rule.replace("<path:", "<"), set()).update(rule.methods or ())
    return {path: f"{'/'.join(sorted(methods.difference(_HIDDEN)))} {path}" for path, methods in allowed.items()}
