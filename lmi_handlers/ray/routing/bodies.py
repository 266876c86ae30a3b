"""The beginning of a body, read before it is known where the body goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Message, Receive

from lmi_handlers.ray.forwarding import Body, ClientLeft

_WAIT_SECONDS = 0.05
"""For the next part of a beginning. A client that sends slowly is routed by what has arrived."""


async def read_head(receive: Receive, size: int) -> tuple[bytes, Body]:
    """Return about the first `size` bytes of a body, fewer if they do not arrive, and the whole body.

    It is one piece if it has arrived as a whole. Raises `ClientLeft`.
    """
    head = b""
    message: asyncio.Future[Message] = asyncio.ensure_future(receive())
    try:
        await message
        while True:
            head, is_last = head + _part(message.result()), not message.result().get("more_body", False)
            if is_last:
                return head, head
            message = asyncio.ensure_future(receive())
            if len(head) >= size or not (await asyncio.wait((message,), timeout=_WAIT_SECONDS))[0]:
                return head, _rest(head, message, receive)
    except BaseException:
        message.cancel()
        raise


async def _rest(head: bytes, message: asyncio.Future[Message], receive: Receive) -> AsyncIterator[bytes]:
    yield head
    try:
        while True:
            await message
            if part := _part(message.result()):
                yield part
            if not message.result().get("more_body", False):
                return
            message = asyncio.ensure_future(receive())
    finally:
        message.cancel()


def _part(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientLeft
    part: bytes = message.get("body", b"")
    return part
