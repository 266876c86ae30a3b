"""Shared by the pages for browsers."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from flask import Response, request
from werkzeug.http import parse_accept_header

from lmi_handlers.apis.routes import HTML

_HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FILE_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types "
)


def page_headers(trusted_types: str = "'none'") -> dict[str, str]:
    """Return the headers of a page and its files: only they may be loaded. `trusted_types` names who may write HTML."""
    return _HEADERS | {"Content-Security-Policy": _POLICY + trusted_types}


class PageFile:
    """A file of a page, in memory. Its ETag is computed once, because Swagger UI's script has 1.7 MB."""

    def __init__(self, name: str, content: bytes, headers: Mapping[str, str]) -> None:
        self._content = content
        self._content_type = FILE_TYPES[PurePath(name).suffix]
        self._headers = headers
        self._tag = sha256(content).hexdigest()[:16]

    def response(self) -> Response:
        """Return the answer to the current request: nothing but its head if the client has the file already."""
        response = Response(self._content, headers=self._headers, content_type=self._content_type)
        response.set_etag(self._tag)
        response.make_conditional(request)
        return response


def wants_page(environ: Mapping[str, Any]) -> bool:
    """Tell whether a client accepts HTML by name. Programs say `*/*`, or nothing."""
    if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
        return False
    accepted = parse_accept_header(environ.get("HTTP_ACCEPT", ""))
    return any(name == HTML and quality > 0 for name, quality in accepted)
