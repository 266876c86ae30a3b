"""Who may ask: pages in browsers (by their origin), names that a loopback server answers to, and the API key.

A browser sends a "simple" POST to any server that its machine can reach, without asking first, so a page could spend a
laptop's model even though it may not read the answer. CORS alone does not help; the request itself has to be refused.
Browsers mark what they send with `Origin` and `Sec-Fetch-Site`, which no page can change. Other clients send neither.
"""

from __future__ import annotations

import hmac
import os
import socket
from urllib.parse import urlsplit

from flask import Flask, Response, request
from werkzeug.exceptions import Forbidden

from lmi_handlers.config.server_settings import ip_address, is_loopback, parse_origins

ANY_ORIGIN = "*"
ADMITTED = "lmi.admitted"
"""Set in the WSGI environment of a request that the server itself passes on, having admitted the client's."""

_VARY = "origin, access-control-request-method, access-control-request-headers"
_READING = ("GET", "HEAD", "OPTIONS")
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_OPTION = "cors_allowed_origin (CORS_ALLOW_ORIGIN)"


class AccessControl:
    """Answers every `OPTIONS`, marks every response for browsers, and refuses what may not be asked.

    `allowed_origins` is `*` for the pages of every origin, or origins separated by commas. None stands for pages of the
    server's own origin and of this machine's loopback addresses. With `loopback_only` the server must be asked by a name
    that cannot point elsewhere: a page may have its own name resolve to 127.0.0.1 and thus share the server's origin.

    With `api_key` every POST needs `Authorization: Bearer <key>`, or an AWS signature whose access key id is the key,
    since that is all that an AWS client can send. GETs need no key: they tell health, metrics and names.
    """

    def __init__(self, allowed_origins: str | None, api_key: str | None, *, loopback_only: bool = False) -> None:
        self._listed = parse_origins(allowed_origins or "")
        self._loopback_pages = allowed_origins is None
        self._names = {urlsplit(origin).hostname for origin in self._listed} | {socket.gethostname().lower()}
        self.checks_names = loopback_only and ANY_ORIGIN not in self._listed
        self._key = os.fsencode(api_key) if api_key else None

    def install(self, app: Flask) -> None:
        """Stand in front of every route of `app`, unknown ones included."""
        app.before_request(self._admit)
        app.after_request(self._mark)

    def _admit(self) -> Response | None:
        """Return the answer to a request that goes no further. Raises `Forbidden`."""
        if ADMITTED in request.environ:
            return None
        if self.checks_names and not self._is_local(_host_name(request.host)):
            raise Forbidden(
                f"this server listens on the loopback interface and does not answer to the host name {request.host[:100]!r}; "
                f"list an origin of that name in {_OPTION} if it should"
            )
        if request.method == "OPTIONS":
            allowed = "content-type" if self._key is None else "content-type,authorization"
            if self._from_allowed_page():  # OpenAI's client sends a key to any server, and headers of its own
                allowed = request.headers.get("Access-Control-Request-Headers") or allowed
            return Response(
                headers={"Access-Control-Allow-Methods": "GET,POST", "Access-Control-Allow-Headers": allowed}
            )
        if request.method in _READING:
            return None
        if not self._from_allowed_page():
            origin = request.headers.get("Origin")
            page = "another site" if origin is None else f"origin {origin[:200]!r}"
            raise Forbidden(f"pages of {page} may not call this server; {_OPTION} lists those that may")
        if self._key is not None and not self._has_key(self._key):
            return Response(status=401)
        return None

    def _from_allowed_page(self) -> bool:
        """Whether the request comes from no page at all, as far as browsers tell, or from one that may send it."""
        if ANY_ORIGIN in self._listed:
            return True
        origin = request.headers.get("Origin")
        if origin is None:
            return request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        return self._allows(origin)

    def _allows(self, origin: str) -> bool:
        """`origin` is a scheme, a name and a port, or "null" for a page that hides where it comes from."""
        if origin.lower() in self._listed:
            return True
        _, separator, host = origin.lower().partition("://")
        if not separator:
            return False
        return host == request.host.lower() or (self._loopback_pages and is_loopback(_host_name(host)))

    def _is_local(self, name: str) -> bool:
        """Whether no stranger can have a page under this name: an address, a reserved name or one that was allowed."""
        return "." not in name or name.endswith(_LOCAL_SUFFIXES) or ip_address(name) is not None or name in self._names

    @staticmethod
    def _has_key(key: bytes) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme == "AWS4-HMAC-SHA256":
            # Credential=<access key id>/<date>/<region>/<service>/aws4_request, SignedHeaders=..
            given = given.partition("Credential=")[2].partition(",")[0].rsplit("/", 4)[0]
        elif scheme.lower() != "bearer":
            return False
        # WSGI hands over a header's bytes as Latin-1 text.
        return hmac.compare_digest(given.encode("latin-1"), key)

    def _mark(self, response: Response) -> Response:
        origin = request.headers.get("Origin")
        if ANY_ORIGIN in self._listed:
            response.headers["Access-Control-Allow-Origin"] = ANY_ORIGIN
        elif origin is not None and self._allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Vary"] = f"{response.headers['Vary']}, {_VARY}" if "Vary" in response.headers else _VARY
        return response


def _host_name(host: str) -> str:
    """Return what stands before the port in a `Host` header, an IPv6 address without its brackets."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")
