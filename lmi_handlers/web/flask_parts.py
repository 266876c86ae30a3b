"""The parts of Flask that every request goes through, without steps that no route of ours needs.

In a burst, the last request waits for what each of the others takes.
"""

from __future__ import annotations

import functools
from typing import Any

from flask import Flask, Request, Response
from flask.sessions import NullSession, SessionInterface, SessionMixin
from werkzeug.datastructures import EnvironHeaders, Headers
from werkzeug.routing import Map, MapAdapter


class RequestHeaders(EnvironHeaders):
    """The headers of a request. Most of those that are looked up are absent, which costs werkzeug an exception each."""

    def get(self, key: str, default: Any = None, type: Any = None) -> Any:  # type: ignore[override]  # noqa: A002
        value = self.environ.get(_variable(key))
        if value is None:
            return default
        return value if type is None else super().get(key, default, type)


@functools.lru_cache(maxsize=256)
def _variable(header: str) -> str:
    """Return the name of a header in the WSGI environment."""
    name = header.upper().replace("-", "_")
    return name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"


class LeanRequest(Request):
    """A request with `RequestHeaders`."""

    def __init__(self, environ: dict[str, Any], populate_request: bool = True, shallow: bool = False) -> None:
        super().__init__(environ, populate_request, shallow)
        self.headers = RequestHeaders(environ)


class LeanResponse(Response):
    """A streamed response, which has all of its headers. werkzeug would copy them, to add a length and to correct locations."""

    def get_wsgi_headers(self, environ: dict[str, Any]) -> Headers:  # noqa: ARG002  werkzeug's signature
        return self.headers


class NoSessions(SessionInterface):
    """Keeps nothing in cookies. Without a secret key, Flask would find that out for each request."""

    _none = NullSession()

    def open_session(self, app: Flask, request: Request) -> SessionMixin:  # noqa: ARG002  Flask's signature
        return self._none


def url_adapter(url_map: Map, request: Request) -> MapAdapter:
    """Return the adapter that matches a request to its rule. werkzeug would parse the host twice more, the paths once.

    Raises `BadHost` if the host is no name.
    """
    return url_map.bind(
        request.host,
        request.root_path,
        url_scheme=request.scheme,
        default_method=request.method,
        path_info=request.environ.get("PATH_INFO") and request.path,  # it is empty in `GET ?x=y`, which is redirected
        query_args=request.query_string.decode(errors="replace"),
    )
