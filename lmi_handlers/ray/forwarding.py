"""Passes a request to the replica's server, and its answer back: the same bytes, as they come.

Chunks are passed on as they are read, together with what else has arrived, so nothing waits for a timer. At most 128 KiB
of an answer are held for a client that reads slowly. If the client leaves, Ray cancels the call: the connection to the
server closes, and the server ends the request as if its client had left. If the server dies, the answer ends without its
last chunk, as it does without Ray: HTTP clients report an incomplete answer, and nobody takes it for a whole one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import quote, unquote_to_bytes

import aiohttp
from multidict import CIMultiDict
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from yarl import URL

from lmi_handlers.core.request_path import read_path
from lmi_handlers.ray.bodies import Body, has_body, read_head
from lmi_handlers.ray.gate import as_utf8, taking
from lmi_handlers.ray.server import HOST

_OF_ONE_CONNECTION = frozenset(
    (b"connection", b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
"""Headers about a connection, not about a message (RFC 9110, section 7.6.1)."""

_OF_RAYS_SERVER = frozenset((b"date", b"server"))
"""Ray's HTTP server adds these itself."""

_UNRESERVED = "/:@!$&'()*+,;="
"""Characters that stand for themselves in a path, beside letters, digits and `-._~` (RFC 3986, section 3.3)."""

_REQUEST_ID = "x-request-id"
_RETRY_AFTER = "5"
_FAILS_AFTER_SECONDS = 1.0

_NO_ANSWER = "the server of this replica does not answer"


class Forwarded(Response):
    """The answer of the replica's server. If that is 200, `instead` returns another one."""

    def __init__(
        self, session: aiohttp.ClientSession, path: str, instead: Callable[[], Awaitable[Response]] | None = None
    ) -> None:
        super().__init__()
        self._session = session
        self._path = path
        self._instead = instead

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request of an ASGI call."""
        _, body = await read_head(taking(scope, receive), 0) if has_body(scope) else (b"", None)
        try:
            answer = await ask(self._session, url_of(HOST, self._path, scope), scope, body)
        except aiohttp.ClientConnectionError:
            await answer_no_server(scope, receive, send)
            return
        if self._instead is None or answer.status != 200:
            await relay(answer, scope, send)
            return
        answer.close()
        await (await self._instead())(scope, receive, send)


def path_of(scope: Scope) -> str:
    """Return the path below the application's as the server reads it, one character per byte. Raises `BadPath`."""
    raw_path: bytes | None = scope.get("raw_path")
    octets = scope["path"].encode() if raw_path is None else unquote_to_bytes(raw_path)
    path = read_path(octets.decode("latin-1")).removeprefix(scope.get("root_path", ""))
    return read_path(path)  # the application's own path is its root


def url_of(host: str, path: str, scope: Scope, port: int | None = None) -> URL:
    """Return the URL to send a request to. Its path is the one from `path_of`, because only that has been checked."""
    encoded = quote(path, _UNRESERVED, "latin-1")
    query = scope["query_string"].decode("latin-1")
    return URL.build(scheme="http", host=host, port=port, path=encoded, query_string=query, encoded=True)


async def ask(session: aiohttp.ClientSession, url: URL, scope: Scope, body: Body) -> aiohttp.ClientResponse:
    """Send a request, and return the answer once its head is there. Raises `aiohttp.ClientConnectionError`."""
    asked = CIMultiDict(
        (name.decode("latin-1"), as_utf8(value).decode())  # aiohttp sends UTF-8
        for name, value in scope["headers"]
        if name.lower() not in _OF_ONE_CONNECTION
    )
    return await session.request(scope["method"], url, headers=asked, data=body, allow_redirects=False)


async def relay(answer: aiohttp.ClientResponse, scope: Scope, send: Send) -> None:
    """Pass an answer on to the client."""
    async with answer:
        request_id = dict(scope["headers"]).get(_REQUEST_ID.encode(), b"")
        headers = _passed(answer.raw_headers, request_id)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _passed(headers: Iterable[tuple[bytes, bytes]], request_id: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer without those that Ray's HTTP server adds: it answers with the request's id, too."""
    dropped = _OF_ONE_CONNECTION | _OF_RAYS_SERVER
    added = (_REQUEST_ID.encode(), request_id)
    return [(name, value) for name, value in headers if name.lower() not in dropped and (name.lower(), value) != added]


async def answer_no_server(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request when the server does not. Where requests fail at once, HAProxy would send all of them."""
    await asyncio.sleep(_FAILS_AFTER_SECONDS)
    await answer_error(503, _NO_ANSWER, scope, receive, send)


async def answer_error(status: int, cause: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that no server answers."""
    body = json.dumps({"error": cause, "code": status}).encode()
    headers = {"Retry-After": _RETRY_AFTER} if status == 503 else {}
    await Response(body, status, headers, "application/json")(scope, receive, send)
