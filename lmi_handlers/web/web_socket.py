"""A WebSocket (RFC 6455) on the connection of a request that gunicorn has read.

The library `websockets` has the protocol and does no I/O. Here is the I/O, within the server's limits: one thread reads,
any thread may write.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.web.arriving_bodies import ArrivingBodies, ArrivingBody
from lmi_handlers.web.client_socket import MIN_RATE

MAX_SMALL_FRAMES = 1000
"""Frames of less than `_SMALL` bytes, such as pings, that a client may send per second."""

_SMALL = 256
"""Bytes. What a frame costs, whatever it holds, is more than what these cost."""

_BURST = 4096
"""Small frames that may come at once."""

_PIECE = 1 << 14
_HANDSHAKE = ("HOST", "UPGRADE", "CONNECTION", "SEC_WEBSOCKET_KEY", "SEC_WEBSOCKET_VERSION")
_GOING_AWAY = Frame(Opcode.CLOSE, CloseCode.GOING_AWAY.to_bytes(2, "big")).serialize(mask=False)

_quiet = logging.Logger("websockets.server", logging.CRITICAL)  # a client's mistakes are no news


class InvalidHandshake(Exception):
    """The request is not a valid handshake. It is answered with `status` and `headers`."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class WebSocket:
    """The server's side of a WebSocket. The constructor checks the handshake, and raises `InvalidHandshake`; `open` answers it.

    Messages have at most `max_size` bytes. `bodies` limits what all incomplete messages of this worker hold. A client that
    is silent for `patience` seconds gets a ping, and is disconnected after as long again.
    """

    def __init__(self, environ: Mapping[str, Any], bodies: ArrivingBodies, max_size: int, patience: float) -> None:
        self._sock = environ["gunicorn.socket"]
        self._bodies = bodies
        self._patience = patience
        self._writing = threading.Lock()
        self._small_frames = _Allowance()
        self._protocol = ServerProtocol(max_size=max_size, logger=_quiet)
        self._protocol.receive_data(_head(environ))
        requests = self._protocol.events_received()
        if not requests:
            raise InvalidHandshake(400, "the handshake of the WebSocket is malformed", {})
        assert isinstance(requests[0], Request)  # noqa: S101  the first event of a server's side
        self._answer = self._protocol.accept(requests[0])
        if self._answer.status_code != 101:
            offered = {name: value for name, value in self._answer.headers.raw_items() if name in ("Upgrade", "Allow")}
            raise InvalidHandshake(self._answer.status_code, str(self._protocol.handshake_exc), offered)

    @property
    def is_open(self) -> bool:
        """True if messages can be sent."""
        return self._protocol.state is State.OPEN

    def open(self) -> None:
        """Answer the handshake. Raises `OSError` if the client has left."""
        with self._writing:
            self._protocol.send_response(self._answer)
            self._flush()
        if hasattr(self._sock, "begin_frames"):
            self._sock.begin_frames(_GOING_AWAY)
        else:
            self._sock.settimeout(self._patience)

    def messages(self) -> Iterator[bytes]:
        """Yield each message, text or binary, until either side closes or the client has left."""
        asked = False
        message = _Message(self._bodies, self._patience)
        with contextlib.closing(message):
            while self.is_open:
                try:
                    data = self._sock.recv(_PIECE)
                except BlockingIOError:
                    continue  # woken for nothing while another thread wrote
                except TimeoutError:
                    if asked or message.has_begun:
                        self.close(CloseCode.GOING_AWAY, "nothing has arrived for too long")
                        return
                    asked = True
                    self._ping()
                    continue
                except OSError:
                    data = b""
                asked = False
                yield from self._receive(data, message)
                if not data:
                    return
                if hasattr(self._sock, "set_idle"):
                    self._sock.set_idle(not message.has_begun)
                give_way()  # a client that sends fast, such as many pings, would otherwise block the event loop

    def _receive(self, data: bytes, message: _Message) -> Iterator[bytes]:
        with self._writing:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
            self._flush()  # pongs, and the answer to a close frame
        try:
            message.arrived(len(data))
        except QueueFull as error:
            self.close(CloseCode.TRY_AGAIN_LATER, str(error))
            return
        if self._small_frames.exceed(sum(len(frame.data) < _SMALL for frame in frames)):
            self.close(CloseCode.POLICY_VIOLATION, "too many small frames, such as pings")
            return
        if message.is_slow:
            self.close(CloseCode.POLICY_VIOLATION, "the message did not arrive in time (option.client_timeout)")
            return
        for frame in frames:
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                message.add(frame)
                if frame.fin:
                    whole = message.take()
                    if message.is_text and not is_utf8(whole):
                        self.close(CloseCode.INVALID_DATA, "the text is not valid UTF-8")
                        return
                    yield whole
        if not self._protocol.reader.buffer:
            message.pause()

    def send(self, data: bytes, *, text: bool) -> None:
        """Send a message. Raises `OSError` if the WebSocket is closed, or if the client reads too slowly."""
        with self._writing:
            if not self.is_open:
                raise ConnectionResetError("the WebSocket is closed")
            (self._protocol.send_text if text else self._protocol.send_binary)(data)
            self._flush()

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send a close frame, unless one was sent or the client has left. `reason` is cut to what such a frame may have."""
        with contextlib.suppress(OSError, WebSocketException), self._writing:
            if self.is_open:
                self._protocol.send_close(code, reason.encode()[:120].decode(errors="ignore"))
                self._flush()

    def set_busy(self, busy: bool) -> None:
        """Say whether the server is answering, so that the client is not waited for."""
        if hasattr(self._sock, "set_busy"):
            self._sock.set_busy(busy)

    def limit_writes(self, deadline: float = math.inf) -> None:
        """Stop writing at the monotonic time `deadline`, however slowly the client reads."""
        if hasattr(self._sock, "limit_writes"):
            self._sock.limit_writes(deadline)

    def _ping(self) -> None:
        with contextlib.suppress(OSError), self._writing:
            self._protocol.send_ping(b"")
            self._flush()

    def _flush(self) -> None:
        if not (data := b"".join(self._protocol.data_to_send())):
            return
        try:
            self._sock.sendall(data)
        except TimeoutError as error:  # of a plain socket, as in gthread workers
            # Part of a frame may have been sent, so nothing can follow.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError(errno.ECONNRESET, "the client does not read its answer") from error


class _Allowance:
    """How many small frames a client may still send: `_BURST`, and `MAX_SMALL_FRAMES` more with each second."""

    def __init__(self) -> None:
        self._left = float(_BURST)
        self._counted = time.monotonic()

    def exceed(self, number: int) -> bool:
        """Count frames that have come, and tell whether they were too many."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._counted) * MAX_SMALL_FRAMES, _BURST) - number
        self._counted = now
        return self._left < 0


class _Message:
    """The message that is arriving: its frames so far, counted among the bodies of this worker."""

    def __init__(self, bodies: ArrivingBodies, patience: float) -> None:
        self._bodies = bodies
        self._patience = patience
        self._data = bytearray()
        self._has_frames = False
        self._held: ArrivingBody | None = None
        self.is_text = False
        self._began = 0.0
        self._size = 0

    @property
    def has_begun(self) -> bool:
        """True if bytes have arrived since the last complete message."""
        return self._held is not None

    @property
    def is_slow(self) -> bool:
        """True if it has kept up less than `MIN_RATE` for longer than the client may be silent."""
        return self.has_begun and time.monotonic() > self._began + self._patience + self._size / MIN_RATE

    def arrived(self, size: int) -> None:
        """Count bytes before they are looked at. Raises `QueueFull`."""
        if self._held is None:
            self._held = self._bodies.arriving().__enter__()
            self._began, self._size = time.monotonic(), 0
        self._size += size
        self._held.add(size)

    def add(self, frame: Frame) -> None:
        """Add the data of a frame. The first one tells what the message is."""
        if frame.opcode is not Opcode.CONT:
            self.is_text = frame.opcode is Opcode.TEXT
        self._has_frames = True
        self._data += frame.data  # not a list, of which tiny or empty frames would take many times their size

    def take(self) -> bytes:
        """Return the complete message, and begin the next one."""
        message = bytes(self._data)
        self._data.clear()
        self._has_frames = False
        self.close()
        return message

    def pause(self) -> None:
        """Stop counting what has arrived if it was not part of a message, such as a ping. Called between frames."""
        if not self._has_frames:
            self.close()

    def close(self) -> None:
        """Stop counting it."""
        if self._held is not None:
            self._held.__exit__()
            self._held = None


def is_utf8(data: bytes) -> bool:
    """Tell whether a text message can have this data."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _head(environ: Mapping[str, Any]) -> bytes:
    """Return the head of the request with the headers that a handshake has. gunicorn has checked their characters."""
    names = {name: f"HTTP_{name}" for name in _HANDSHAKE}
    lines = [f"{name.replace('_', '-')}: {environ[key]}" for name, key in names.items() if key in environ]
    return "\r\n".join([f"{environ['REQUEST_METHOD']} / HTTP/1.1", *lines, "", ""]).encode("latin-1")
