"""Checks requests in the replica's process before Ray's own code sees them, which some would break.

* Ray answers a WebSocket with status 500, and leaves it open.
* Ray decodes some headers as UTF-8, and answers others with status 500. So they become UTF-8.
* Ray reads each body to its end, to notice that a client leaves. The bodies of requests that wait would fill the memory.
"""

from __future__ import annotations

import asyncio

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

AHEAD_BYTES = 65536
"""So much of a body, and one message more, Ray may have read that has not been passed on to the server."""

_AHEAD = "lmi.read_ahead"
_NO_WEBSOCKETS = "WebSockets are not supported"


def middlewares() -> list[Middleware]:
    """Return what Ray puts before its own code. Ray is told the name of this function in `replica_environ`."""
    return [Middleware(Gate)]


class Gate:
    """The ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":
            refusal = JSONResponse({"error": _NO_WEBSOCKETS, "code": 400}, 400, {"Connection": "close"})
            await WebSocket(scope, receive, send).send_denial_response(refusal)
            return
        if scope["type"] == "http":
            scope["headers"] = [(name, as_utf8(value)) for name, value in scope["headers"]]
            scope[_AHEAD] = receive = ReadAhead(receive)
        await self._app(scope, receive, send)


class ReadAhead:
    """The messages of a request, as Ray receives them. Blocks while too many received bytes are unread."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def __call__(self) -> Message:
        """Receive the next message, once there is room for it."""
        await self._has_room.wait()
        message = await self._receive()
        self._note(len(message.get("body", b"")))
        return message

    def taken(self, message: Message) -> None:
        """Note that a message has been taken out of Ray's queue."""
        self._note(-len(message.get("body", b"")))

    def _note(self, number: int) -> None:
        self._bytes += number
        if self._bytes < AHEAD_BYTES:
            self._has_room.set()
        else:
            self._has_room.clear()


def taking(scope: Scope, receive: Receive) -> Receive:
    """Return `receive` so that the gate learns what is taken. Behind Ray's Python proxy, there is no gate."""
    read_ahead: ReadAhead | None = scope.get(_AHEAD)
    if read_ahead is None:
        return receive

    async def take() -> Message:
        message = await receive()
        read_ahead.taken(message)
        return message

    return take


def as_utf8(value: bytes) -> bytes:
    """Return the value of a header as UTF-8. What is not counts as Latin-1."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()
    return value
