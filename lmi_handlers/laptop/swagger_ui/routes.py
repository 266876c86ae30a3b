"""The page at `/docs` for browsers, and its files below `/docs/`. Programs that ask for `/docs` get a 404.

Swagger UI comes from flask-swagger-ui, of which only the files are used: no code of it is imported. Without that package,
the page says how to install it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import NotFound

from lmi_handlers.apis.routes import HTML
from lmi_handlers.web.page_files import PageFile, page_headers, wants_page

PATH = "/docs"
_PACKAGE = "flask_swagger_ui"
_STATIC = Path(__file__).parent / "static"
_OURS = ("page.css", "page.js")
_PACKAGES = ("favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css")
_HEADERS = page_headers("default dompurify")


def is_for_docs(path: str, environ: Mapping[str, Any]) -> bool:
    """Tell whether a request is for the page or for what belongs to it."""
    return path.startswith(f"{PATH}/") or (path == PATH and wants_page(environ))


def add_docs(app: Flask) -> None:
    """Serve the page."""
    blueprint = Blueprint("docs", __name__)
    files = {name: _STATIC / name for name in _OURS}
    if (folder := _package_folder()) is not None:
        files |= {name: folder / name for name in _PACKAGES}

    @blueprint.get(PATH)
    def page() -> Response:
        if not wants_page(request.environ):
            raise NotFound
        name, status = ("missing.html", 404) if folder is None else ("index.html", 200)
        response = Response((_STATIC / name).read_bytes(), status, _HEADERS, content_type=f"{HTML}; charset=utf-8")
        response.vary.add("accept")
        return response

    @blueprint.get(f"{PATH}/<name>")
    def file(name: str) -> Response:
        if name not in files:
            raise NotFound(f"{PATH} has no file {name[:100]!r}")
        return _file(files[name]).response()

    app.register_blueprint(blueprint)


@cache
def _file(path: Path) -> PageFile:
    """Read a file when it is first asked for. All models of a server share it."""
    return PageFile(path.name, path.read_bytes(), _HEADERS)


def _package_folder() -> Path | None:
    """Return the folder of Swagger UI's files, or None if the package is not installed."""
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "dist"
