"""Messages over asyncio's streams, framed as in `lmi_handlers.engine.channel`."""

from __future__ import annotations

import asyncio
import struct
from typing import TypeVar

import msgspec

from lmi_handlers.engine.channel import MAX_MESSAGE_SIZE, ProtocolError

T = TypeVar("T")

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """Return the message as bytes to send."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Return the next message. Raises `EOFError` or `OSError` at the end, `ProtocolError` if it is not a message."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_MESSAGE_SIZE:
        raise ProtocolError(f"a message must have at most {MAX_MESSAGE_SIZE} bytes, got {length}")
    payload = await reader.readexactly(length)
    try:
        return decoder.decode(payload)
    except Exception as error:
        raise ProtocolError(f"a message cannot be decoded: {error}") from error
