"""Access control: browser origins, host names of a loopback server, and API keys.

A browser sends a "simple" POST to any reachable server without a preflight, so any web page could use a model on a
laptop, even though it cannot read the answer. CORS alone does not prevent that; the request itself must be refused.
Browsers set `Origin` and `Sec-Fetch-Site`, which pages cannot change. Other clients send neither.

flask-cors is not used: it only adds response headers, from a fixed list of origins. It refuses nothing, and cannot allow
the origin that equals the request's own host. It would replace only `_mark`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Request, Response
from werkzeug.datastructures import EnvironHeaders, Headers
from werkzeug.exceptions import Forbidden

from lmi_handlers.config.server_settings import ip_address, is_loopback, parse_origins
from lmi_handlers.web.api_keys import ApiKeys
from lmi_handlers.web.connection import current_request, local_port

ANY_ORIGIN = "*"
ADMITTED = "lmi.admitted"
"""Set in the WSGI environment of an internal request whose original client request was already admitted."""

KEY_LABEL = "lmi.key_label"
"""Set in the WSGI environment of a request to the label of its API key."""

HAS_KEY = "lmi.has_key"
"""Set in the WSGI environment of a request that may have carried the server's API key."""

_VARY = "origin, access-control-request-method, access-control-request-headers"
_READING = ("GET", "HEAD", "OPTIONS")
_MANAGES = re.compile(r"(/models/[^/]+)?/adapters(/|$)|/models(/|$)|/console/data(/|$)")
"""Paths that show the places of files or the requests of others."""

BIDIRECTIONAL_STREAM = "/invocations-bidirectional-stream"
"""The path of the WebSocket, which begins with a GET. Browsers open one to any server, and let the page read from it."""

_OPTION = "cors_allowed_origin (CORS_ALLOW_ORIGIN)"


class AccessControl:
    """Answers every `OPTIONS`, adds CORS headers to every response, and refuses requests that are not allowed.

    `allowed_origins` is `*` for any origin, or origins separated by commas. None allows the server's own origin and
    this machine's loopback addresses. With `loopback_only` the request's host name must be local: otherwise a page
    could have its own name resolve to 127.0.0.1 and so share the server's origin. `loopback_port` is the port of another
    address of the server to which that applies.

    With `keys` every POST needs `Authorization: Bearer <key>`, `x-api-key: <key>` as Anthropic's clients send it, or
    an AWS signature whose access key id is the key, because AWS clients can send nothing else. GETs need no key: they show
    only health, metrics and names.
    """

    def __init__(
        self,
        allowed_origins: str | None,
        keys: ApiKeys,
        *,
        loopback_only: bool = False,
        loopback_port: int | None = None,
    ) -> None:
        self._listed = parse_origins(allowed_origins or "")
        self._loopback_pages = allowed_origins is None
        self._names = {urlsplit(origin).hostname for origin in self._listed} | {
            socket.gethostname().lower().rstrip(".")
        }
        self.checks_names = loopback_only and ANY_ORIGIN not in self._listed
        self._checked_port = None if ANY_ORIGIN in self._listed else loopback_port
        self._keys = keys

    @property
    def has_key(self) -> bool:
        """True if requests need an API key."""
        return self._keys.required

    def install(self, app: Flask) -> None:
        """Check every request to `app`, including those to unknown routes."""
        app.extensions["lmi_access"] = self
        app.before_request(self._admit)
        app.after_request(self._mark)

    def admits(self) -> bool:
        """Tell whether the current request may reach its route."""
        try:
            return self._admit() is None
        except Forbidden:
            return False

    def has_valid_key(self, environ: Mapping[str, Any]) -> bool:
        """Tell whether an earlier request has a key that is valid now, or needs none."""
        return not self.has_key or self._label(EnvironHeaders(environ)) is not None  # type: ignore[arg-type]

    def _admit(self) -> Response | None:
        """Return a response if the request must not reach its route, else None. Raises `Forbidden`."""
        request = current_request()
        if ADMITTED in request.environ:
            return None
        if self.has_key:
            request.environ[HAS_KEY] = True
        if self._names_matter(request) and not self._is_local(_host_name(request.host)):
            raise Forbidden(
                f"host name {request.host[:100]!r} is not allowed, because this server listens on the loopback interface; "
                f"an origin with this name in {_OPTION} allows it"
            )
        if request.method == "OPTIONS":
            allowed = "content-type,authorization" if self.has_key else "content-type"
            if self._from_allowed_page(request):  # OpenAI's client always sends a key and its own headers
                allowed = request.headers.get("Access-Control-Request-Headers") or allowed
            return Response(
                headers={"Access-Control-Allow-Methods": "GET,POST,PUT,DELETE", "Access-Control-Allow-Headers": allowed}
            )
        if not needs_permission(request.method, request.path):
            return None
        if not self._from_allowed_page(request):
            origin = request.headers.get("Origin")
            page = "another site" if origin is None else f"origin {origin[:200]!r}"
            raise Forbidden(f"requests from {page} are not allowed; {_OPTION} lists the allowed origins")
        if self.has_key:
            label = self._label(request.headers)
            if label is None:
                return Response(status=401)
            request.environ[KEY_LABEL] = label
        return None

    def _label(self, headers: Headers) -> str | None:
        """Return the label of the key in a request's headers, or None if there is no valid one."""
        return next(filter(None, map(self._keys.label_of, _given_keys(headers))), None)

    def _names_matter(self, request: Request) -> bool:
        if self.checks_names:
            return True
        return self._checked_port is not None and local_port(request.environ) == self._checked_port

    def _from_allowed_page(self, request: Request) -> bool:
        """True if the request comes from an allowed page or, judging by its headers, from no other site's page."""
        if ANY_ORIGIN in self._listed:
            return True
        origin = request.headers.get("Origin")
        if origin is None:
            return request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        return self._allows(origin, request)

    def _allows(self, origin: str, request: Request) -> bool:
        """True if `origin` is allowed for a request: scheme, host and port, or "null" for a page that hides its origin."""
        if origin.lower() in self._listed:
            return True
        _, separator, host = origin.lower().partition("://")
        if not separator:
            return False
        return host == request.host.lower() or (self._loopback_pages and is_loopback(_host_name(host)))

    def _is_local(self, name: str) -> bool:
        """True if no other machine can serve a page under this name: an address, this machine's name, or an allowed one.

        A name without dots, or under `.local` or `.internal`, may be another machine's in the same network.
        """
        return name in self._names or is_loopback(name) or ip_address(name) is not None

    def _mark(self, response: Response) -> Response:
        request = current_request()
        origin = request.headers.get("Origin")
        if ANY_ORIGIN in self._listed:
            response.headers["Access-Control-Allow-Origin"] = ANY_ORIGIN
        elif origin is not None and self._allows(origin, request):
            response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Vary"] = ", ".join([*response.headers.getlist("Vary"), _VARY])
        return response


def needs_permission(method: str, path: str) -> bool:
    """Tell whether a request needs the API key, and must not come from another site's page."""
    return method not in _READING or _MANAGES.match(path) is not None or path.rstrip("/") == BIDIRECTIONAL_STREAM


def _given_keys(headers: Headers) -> Iterator[bytes]:
    """Yield what may be a request's API key. WSGI decodes header bytes as Latin-1."""
    if (given := headers.get("x-api-key")) is not None:
        yield given.encode("latin-1")
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    if scheme == "AWS4-HMAC-SHA256":
        # Credential=<access key id>/<date>/<region>/<service>/aws4_request, SignedHeaders=..
        yield given.partition("Credential=")[2].partition(",")[0].rsplit("/", 4)[0].encode("latin-1")
    elif scheme.lower() == "bearer":
        yield given.encode("latin-1")


def _host_name(host: str) -> str:
    """Return a `Host` header without its port; IPv6 addresses also lose their brackets."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")
