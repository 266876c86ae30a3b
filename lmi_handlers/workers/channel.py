"""Message framing over a Unix stream socket: a 4-byte big-endian length, then that many bytes of MessagePack."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Generator
from typing import Generic, TypeVar

import msgspec

Sent = TypeVar("Sent", bound=msgspec.Struct)
Received = TypeVar("Received", bound=msgspec.Struct)

MAX_MESSAGE_SIZE = 256 * 1024 * 1024
"""Maximum size of a message in bytes, in either direction."""

LENGTH = struct.Struct(">I")
"""The header of each message: its size in bytes."""

_READ_BUFFER = 1 << 16


class MessageTooLong(Exception):
    """The message is larger than `MAX_MESSAGE_SIZE`. No part of it has been sent."""


class ProtocolError(Exception):
    """The other end sent something that is not a message. The connection cannot be used any more: close it."""


_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """Return a message as bytes to send. Raises `MessageTooLong`."""
    payload = _encoder.encode(message)
    if len(payload) > MAX_MESSAGE_SIZE:
        raise MessageTooLong(f"a message must have at most {MAX_MESSAGE_SIZE} bytes, got {len(payload)}")
    return LENGTH.pack(len(payload)) + payload


def payload_length(header: bytes | bytearray) -> int:
    """Return how many bytes follow `header`, the first `LENGTH.size` bytes of a frame. Raises `ProtocolError`."""
    (length,) = LENGTH.unpack_from(header)
    if length > MAX_MESSAGE_SIZE:
        raise ProtocolError(f"a message must have at most {MAX_MESSAGE_SIZE} bytes, got {length}")
    return int(length)


def decode(payload: bytes, decoder: msgspec.msgpack.Decoder[Received]) -> Received:
    """Return the message that a frame holds. Raises `ProtocolError`."""
    try:
        return decoder.decode(payload)
    except Exception as error:  # the types' own checks raise more than `DecodeError`
        raise ProtocolError(f"a message cannot be decoded: {error}") from error


class Channel(Generic[Sent, Received]):
    """One end of a connection. One thread sends, and one thread iterates over `receive`."""

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[Received]) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb", buffering=_READ_BUFFER)
        self._decoder = decoder

    def limit_sending(self, seconds: float) -> None:
        """Let a write raise `BlockingIOError` once the other end has read nothing for so many seconds, at least 1 us."""
        whole, rest = divmod(seconds, 1)
        limit = struct.pack("ll", int(whole), int(rest * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def limit_unread(self, size: int) -> None:
        """Let writes block once about `size` bytes, and as many of the kernel's own, wait for the other end to read."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def send(self, message: Sent) -> None:
        """Write one message, which may block forever. Raises `OSError` if the other end is gone, `MessageTooLong`."""
        self.send_frame(self.frame(message))

    def frame(self, message: Sent) -> bytes:
        """Return the message as bytes to send. Raises `MessageTooLong`."""
        return frame(message)

    def send_frame(self, frame: bytes) -> None:
        """Write what `frame` returned, or several of these joined. Blocks and raises as `send` does."""
        self._socket.sendall(frame)

    def receive(self) -> Generator[Received]:
        """Yield messages until the connection ends for any reason. Raises `ProtocolError`. Call it only once."""
        with self._reader:
            while True:
                try:
                    header = self._reader.read(LENGTH.size)
                    if len(header) < LENGTH.size:
                        return
                    length = payload_length(header)
                    payload = self._reader.read(length)
                except OSError:
                    return
                if len(payload) < length:
                    return
                yield decode(payload, self._decoder)

    def close(self) -> None:
        """Close the connection. A `receive` in another thread ends too."""
        with contextlib.suppress(OSError):  # the other end may have closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()  # takes effect once the reader, in another thread, is gone too
