"""The routes of the console: the page at `/` for browsers, its files below `/console/`, and the data that it shows.

    GET /                              the page, if the client accepts HTML; programs get what they got without it
    GET /console/<file>                its scripts and its style
    GET /console/data/state            models, the metrics of the one in `model`, and the last requests, as of `since`
    GET /console/data/configuration    what `lmi check` knows

The data needs the API key if there is one. The page and its files need none: they are the same for everybody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import NotFound

from lmi_handlers.apis.routes import JSON
from lmi_handlers.laptop.console.state import Snapshot
from lmi_handlers.web.page_files import FILE_TYPES, PageFile, page_headers, wants_page

FOLDER = "/console/"
PAGE = "index.html"
MAX_AGE = 1.0
"""Seconds for which a worker answers with the same state, so that many open pages cost little more than one."""


def is_for_console(path: str, environ: Mapping[str, Any]) -> bool:
    """Tell whether a request is for the page or for what belongs to it."""
    return path.startswith(FOLDER) or (path == "/" and wants_page(environ))


def add_console(
    app: Flask,
    snapshot: Callable[[], Snapshot],
    configuration: Callable[[str | None], object],
    may_manage: Callable[[], bool] = lambda: False,
) -> None:
    """Serve the console. `configuration` returns that of a model. It raises `KeyError` for an unknown one.

    `may_manage` tells whether the current request may load and unload models.
    """
    blueprint = Blueprint("console", __name__)
    shown = {name: PageFile(name, content, page_headers()) for name, content in static_files().items()}
    latest = _Latest(snapshot)

    @blueprint.get("/console/<path:name>")
    def file(name: str) -> Response:
        if name not in shown:
            raise NotFound(f"the console has no file {name[:100]!r}")
        return shown[name].response()

    @blueprint.get("/console/data/state")
    def data() -> Response:
        state = latest.read().state(
            manages=may_manage(),
            model=request.args.get("model", ""),
            since=request.args.get("since", 0.0, type=float),
        )
        return _data(msgspec.json.encode(state))

    @blueprint.get("/console/data/configuration")
    def configured() -> Response:
        try:
            return _data(msgspec.json.encode(configuration(request.args.get("model"))))
        except KeyError:
            raise NotFound("there is no such model") from None

    others: Any = app.view_functions.get("GET /")

    def root() -> Response:
        if wants_page(request.environ):
            response = file(PAGE)
        elif others is None:
            raise NotFound
        else:
            response = others()
        response.vary.add("accept")
        return response

    if others is None:
        app.add_url_rule("/", "GET /", methods=["GET"])
    app.view_functions["GET /"] = root
    app.register_blueprint(blueprint)


def static_files() -> dict[str, bytes]:
    """Return the page and the files that it loads, by their paths below `/console/`."""
    folder = Path(__file__).parent / "static"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.suffix in FILE_TYPES}


class _Latest:
    """The worker's state, read again once it is `MAX_AGE` seconds old."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._read = snapshot
        self._last: tuple[float, Snapshot] | None = None

    def read(self) -> Snapshot:
        now = time.monotonic()
        if self._last is None or now - self._last[0] >= MAX_AGE:
            self._last = now, self._read()
        return self._last[1]


def _data(body: bytes) -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(body, headers=headers, content_type=JSON)
