"""Message framing over a Unix stream socket: a 4-byte big-endian length, then that many bytes of MessagePack."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Generator
from typing import Generic, TypeVar

import msgspec

from lmi_handlers.engine.messages import EngineMessage, WorkerMessage

Sent = TypeVar("Sent", bound=msgspec.Struct)
Received = TypeVar("Received", bound=msgspec.Struct)

MAX_MESSAGE_SIZE = 256 * 1024 * 1024
"""Maximum size of a message in bytes, in either direction."""

_LENGTH = struct.Struct(">I")
_READ_BUFFER = 1 << 16


class MessageTooLong(Exception):
    """The message is larger than `MAX_MESSAGE_SIZE`. No part of it has been sent."""


class ProtocolError(Exception):
    """The other end sent something that is not a message. The connection cannot be used any more: close it."""


class Channel(Generic[Sent, Received]):
    """One end of a connection. One thread sends, and one thread iterates over `receive`."""

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[Received]) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb", buffering=_READ_BUFFER)
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Sent) -> None:
        """Write one message, which may block forever. Raises `OSError` if the other end is gone, `MessageTooLong`."""
        self.send_frame(self.frame(message))

    def frame(self, message: Sent) -> bytes:
        """Return the message as bytes to send. Raises `MessageTooLong`."""
        payload = self._encoder.encode(message)
        if len(payload) > MAX_MESSAGE_SIZE:
            raise MessageTooLong(f"a message must have at most {MAX_MESSAGE_SIZE} bytes, got {len(payload)}")
        return _LENGTH.pack(len(payload)) + payload

    def send_frame(self, frame: bytes) -> None:
        """Write what `frame` returned, or several of these joined. Blocks and raises as `send` does."""
        self._socket.sendall(frame)

    def receive(self) -> Generator[Received]:
        """Yield messages until the connection ends for any reason. Raises `ProtocolError`. Call it only once."""
        with self._reader:
            while True:
                try:
                    header = self._reader.read(_LENGTH.size)
                    if len(header) < _LENGTH.size:
                        return
                    (length,) = _LENGTH.unpack(header)
                    if length > MAX_MESSAGE_SIZE:
                        raise ProtocolError(f"a message must have at most {MAX_MESSAGE_SIZE} bytes, got {length}")
                    payload = self._reader.read(length)
                except OSError:
                    return
                if len(payload) < length:
                    return
                try:
                    message = self._decoder.decode(payload)
                except Exception as error:  # the types' own checks raise more than `DecodeError`
                    raise ProtocolError(f"a message cannot be decoded: {error}") from error
                yield message

    def close(self) -> None:
        """Close the connection. A `receive` in another thread ends too."""
        with contextlib.suppress(OSError):  # the other end may have closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()  # takes effect once the reader, in another thread, is gone too


def worker_end(sock: socket.socket) -> Channel[WorkerMessage, EngineMessage]:
    """Return the web worker's end, which sends `Submit` and `Abort`."""
    return Channel(sock, msgspec.msgpack.Decoder(EngineMessage))


def engine_end(sock: socket.socket) -> Channel[EngineMessage, WorkerMessage]:
    """Return the engine process's end, which sends its state, `Outputs` and `Failed`."""
    return Channel(sock, msgspec.msgpack.Decoder(WorkerMessage))
