"""The body of a request: its beginning, by which it may be routed, and the rest as it arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.types import Message, Receive, Scope

Body = bytes | AsyncIterator[bytes] | None
"""A request's body: whole, in parts as they arrive, or None if there is none."""

_HEAD_SECONDS = 5.0
"""For a beginning. The server, which limits how slowly a client may send, learns of the request after that."""

_NEXT_SECONDS = 0.05
"""For each further part of a beginning. A client that sends slowly is routed by what has arrived."""


class ClientLeft(Exception):
    """The client has disconnected before its request was complete."""


def has_body(scope: Scope) -> bool:
    """Tell whether a request has a body, which may be empty."""
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


async def read_head(receive: Receive, size: int) -> tuple[bytes, Body]:
    """Return about the first `size` bytes of a body, fewer if they do not arrive, and the whole body.

    It is one piece if it has arrived as a whole, so that it is sent with the request's head. Raises `ClientLeft`.
    """
    head, deadline = b"", time.monotonic() + _HEAD_SECONDS
    while True:
        left = deadline - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), min(left, _NEXT_SECONDS) if head else left)
        except (TimeoutError, asyncio.TimeoutError):
            break
        head += _part(message)
        if not message.get("more_body", False):
            return head, head
        if len(head) >= size:
            break
    return head, _parts(head, receive)


async def _parts(head: bytes, receive: Receive) -> AsyncIterator[bytes]:
    """Yield what has arrived, and the rest. Raises `ClientLeft`."""
    yield head  # also an empty one: aiohttp keeps the request's head until there is a part
    is_last = False
    while not is_last:
        message = await receive()
        if part := _part(message):
            yield part
        is_last = not message.get("more_body", False)


def _part(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientLeft
    part: bytes = message.get("body", b"")
    return part
