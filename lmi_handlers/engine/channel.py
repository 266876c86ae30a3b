"""Framing: one message is a 4-byte big-endian length and that many bytes of MessagePack, over a Unix stream socket."""

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
"""Bytes of the longest message, either way."""

_LENGTH = struct.Struct(">I")
_READ_BUFFER = 1 << 16


class MessageTooLong(Exception):
    """The message is over `MAX_MESSAGE_SIZE`; nothing of it has been sent."""


class ProtocolError(Exception):
    """The other end sent what is no message. There is no going on: close the connection."""


class Channel(Generic[Sent, Received]):
    """One end of a connection. One thread sends; one thread iterates over `receive`."""

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[Received]) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb", buffering=_READ_BUFFER)
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Sent) -> None:
        """Write one message, which may take for ever. Raises `OSError` where the other end is gone, `MessageTooLong`."""
        self.send_frame(self.frame(message))

    def frame(self, message: Sent) -> bytes:
        """Return the message as it is sent. Raises `MessageTooLong`."""
        payload = self._encoder.encode(message)
        if len(payload) > MAX_MESSAGE_SIZE:
            raise MessageTooLong(f"the message has {len(payload)} bytes, at most {MAX_MESSAGE_SIZE} are possible")
        return _LENGTH.pack(len(payload)) + payload

    def send_frame(self, frame: bytes) -> None:
        """Write what `frame` returned; otherwise as `send`."""
        self._socket.sendall(frame)

    def receive(self) -> Generator[Received]:
        """Messages until the other end closes, however that comes about. Raises `ProtocolError`. To be called once."""
        with self._reader:
            while True:
                try:
                    header = self._reader.read(_LENGTH.size)
                    if len(header) < _LENGTH.size:
                        return
                    (length,) = _LENGTH.unpack(header)
                    if length > MAX_MESSAGE_SIZE:
                        raise ProtocolError(f"a message of {length} bytes; at most {MAX_MESSAGE_SIZE} are possible")
                    payload = self._reader.read(length)
                except OSError:
                    return
                if len(payload) < length:
                    return
                try:
                    message = self._decoder.decode(payload)
                except Exception as error:  # the types' own checks raise other things than `DecodeError`
                    raise ProtocolError(f"a message that cannot be decoded: {error}") from error
                yield message

    def close(self) -> None:
        """End the connection; a `receive` in another thread ends too."""
        with contextlib.suppress(OSError):  # the other end may have been first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()  # which takes effect once the reader, of another thread, is gone too


def worker_end(sock: socket.socket) -> Channel[WorkerMessage, EngineMessage]:
    """The web worker's end: sends `Submit` and `Abort`."""
    return Channel(sock, msgspec.msgpack.Decoder(EngineMessage))


def engine_end(sock: socket.socket) -> Channel[EngineMessage, WorkerMessage]:
    """The engine process's end: sends states, `Outputs` and `Failed`."""
    return Channel(sock, msgspec.msgpack.Decoder(WorkerMessage))
