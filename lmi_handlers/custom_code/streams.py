"""Messages over asyncio's streams, framed as in `lmi_handlers.workers.channel`."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from lmi_handlers.workers.channel import LENGTH, decode, payload_length

T = TypeVar("T", bound=msgspec.Struct)


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Return the next message. Raises `EOFError` or `OSError` at the end, `ProtocolError` if it is not a message."""
    length = payload_length(await reader.readexactly(LENGTH.size))
    return decode(await reader.readexactly(length), decoder)
