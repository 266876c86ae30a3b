"""A client's socket with time limits on every read and write.

It wraps any socket with timeouts and depends on neither gevent nor gunicorn. The worker reports the request's phase:

    idle      no byte of a request yet                   `client_timeout` seconds on a new connection, `keepalive`
                                                         after an answer, then the connection closes
    head      part of the head has arrived               `client_timeout` seconds in all, then `HeadTimeout`
    body      head complete, not answered yet            `client_timeout` seconds without a byte, then `TimeoutError`
    rest      answered, but the body was not all read    5 seconds without a byte, 30 in all, then the connection closes
    frames    a WebSocket, until it closes               `client_timeout` seconds without a byte, then `TimeoutError`

A body and each write must also keep up an average of `MIN_RATE`. Each byte extends the deadline, but never to more than
`client_timeout` seconds from now, so a client that was fast for a moment cannot be slow for hours. A client that reads
too slowly is cut off: its connection is reset, so that the kernel discards the unread data. Data that the kernel still
holds once everything has been written is treated the same way.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import math
import socket
import struct
import termios
import time
from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from lmi_handlers.core.event_loop import give_way

MIN_RATE = 1024
"""Minimum bytes per second, averaged over `client_timeout` seconds, for sending a body and for reading an answer."""

_TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
_TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_UNSENT = 1 << 14
"""Maximum unsent bytes that the kernel buffers. By default it buffers megabytes, and a slow client looks stalled."""

_REST_SILENCE = 5.0
_REST_LIMIT = 30.0
_SHORTEST = 0.001
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: discard what is unsent, send a reset
_STATUS_LINE = b"HTTP/1."
_FIRST_QUESTION = 0.5


class HeadTimeout(Exception):
    """A request head started to arrive but was not complete in time."""


class Limits(msgspec.Struct, frozen=True):
    """Time limits in seconds; see the module docstring."""

    client_timeout: float
    keepalive: float


class _Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    REST = enum.auto()
    FRAMES = enum.auto()


Waiting = dict["ClientSocket", float]
"""Sockets that are waiting for their client and the time since when, in the order of their last signs of life."""


class ClientSocket:
    """The socket that gunicorn reads and writes. It adds itself to `waiting` while it waits for its client."""

    def __init__(self, sock: socket.socket, limits: Limits, waiting: Waiting) -> None:
        self.in_request = False
        self.has_failed = False
        """Whether the client has not taken all of the answer."""
        self._sock = sock
        self._limits = limits
        self._waiting = waiting
        self._closing = False
        self._is_writing = False
        self._is_busy = False
        self._idle_since: float | None = None
        self._farewell = b""
        self._begin(_Phase.IDLE, limits.client_timeout)
        self._begin_answer()
        if sock.family != socket.AF_UNIX:
            if _TCP_USER_TIMEOUT is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, int(limits.client_timeout * 1000))
            if _TCP_NOTSENT_LOWAT is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    # Where the request is

    def begin_request(self) -> None:
        """Call this when the head has been read."""
        self.in_request = True
        self._begin(_Phase.BODY, self._limits.client_timeout)
        self._begin_answer()

    def end_request(self, *, complete: bool) -> None:
        """Call this when the answer has been written. `complete` says whether the body was read to its end."""
        self.in_request = False
        with contextlib.suppress(OSError):
            self.flush()  # if nothing followed, for example because the answer to a HEAD request has no body
        if complete and self._phase is not _Phase.FRAMES:  # a WebSocket's client may still be sending
            self._begin(_Phase.IDLE, self._limits.keepalive)
        else:
            self.expect_rest()

    def expect_rest(self) -> None:
        """Drain the rest of a body that nobody will read.

        Closing at once would reset the connection, and the client could lose its answer.
        """
        self._begin(_Phase.REST, _REST_LIMIT)

    def begin_frames(self, farewell: bytes) -> None:
        """Let reads and writes overlap from now on. `farewell` is what a client is sent before it is cut off for silence."""
        self._farewell = farewell
        self._begin(_Phase.FRAMES, math.inf)

    def set_busy(self, busy: bool) -> None:
        """Say whether the server is answering. Then a `recv` that waits does not mean that the client is waited for."""
        self._is_busy = busy
        self._idle_since = None
        if busy:
            self._waiting.pop(self, None)
        elif self._phase is _Phase.FRAMES and not self._closing:
            self._waiting[self] = time.monotonic()

    def set_idle(self, idle: bool) -> None:
        """Say whether only frames outside of a message have arrived, such as pings: then the client is still waited for."""
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()

    def _begin(self, phase: _Phase, limit: float) -> None:
        self._phase = phase
        self._read_deadline = time.monotonic() + limit

    def _begin_answer(self) -> None:
        self.has_failed = False
        self._write_deadline = math.inf
        self._answering = False
        self._chunked = False
        self._ahead = 0
        self._next_question = 0.0
        self._holds_next = False
        self._held = b""
        self._has_sent = False

    # Reading

    def has_input(self) -> bool:
        """Tell whether the client has sent what is waited for, and it was not read yet. Does not wait."""
        if self._is_writing:  # what a client sends early does not help it if it does not read its answer
            return False
        unread = array("i", [0])
        with contextlib.suppress(OSError, ValueError):  # it is closed
            fcntl.ioctl(self._sock.fileno(), termios.FIONREAD, unread)
        return unread[0] > 0

    def recv(self, size: int, *flags: int) -> bytes:
        """Like a socket's `recv`, within the time limits of the current phase."""
        if self._closing:
            return b""
        now = time.monotonic()
        patience = self._read_deadline - now
        if self._phase is _Phase.REST:
            if patience <= 0:  # however fast a client sends
                return b""
            patience = min(patience, _REST_SILENCE)
        elif self._phase is _Phase.FRAMES:
            patience = self._limits.client_timeout
        self._sock.settimeout(max(patience, _SHORTEST))
        if not self._is_busy:
            self._waiting[self] = now if self._idle_since is None else self._idle_since
        try:
            data = self._sock.recv(size, *flags)
        except TimeoutError:
            if self._phase is _Phase.HEAD:
                raise HeadTimeout from None
            if self._phase in (_Phase.BODY, _Phase.FRAMES):
                raise
            return b""
        except OSError:
            if self._closing:  # set meanwhile: gevent wakes the waiting greenlet with an error
                return b""  # type: ignore[unreachable]  # mypy ignores that others call `hang_up`
            raise
        finally:
            self._waiting.pop(self, None)
        if self._phase is _Phase.IDLE:
            self._begin(_Phase.HEAD, self._limits.client_timeout)
        elif self._phase is _Phase.BODY:
            self._read_deadline = self._extended(self._read_deadline, len(data))
        return data

    def _extended(self, deadline: float, moved: int) -> float:
        """Return the new deadline after `moved` more bytes."""
        return min(deadline + moved / MIN_RATE, time.monotonic() + self._limits.client_timeout)

    # Writing

    def sendall(self, data: bytes, *flags: int) -> None:
        """Like a socket's `sendall`. Cuts off a client that reads too slowly and raises `ConnectionResetError`."""
        if not self._answering:
            self._answering = True
            self._chunked = b"\r\nTransfer-Encoding: chunked\r\n" in data
            data = data[self._ahead :]
        elif self._chunked:
            self._chunked = data != b"0\r\n\r\n"
        self._ahead = 0
        if self._holds_next:
            self._holds_next = False
            self._held += data
        else:
            data, self._held = self._held + data, b""
            self._write(data, *flags)

    def write_chunks(self, parts: Iterable[bytes], *, last: bool = False) -> bool:
        """Write parts of the answer's body, framed as gunicorn does, as far as the client takes them without waiting.

        Returns False if some of it is left. `flush` sends that, within the time limits. If they are the `last` parts, they
        are sent together with the empty chunk that ends the answer, which must follow at once.
        """
        if self._chunked:
            parts = [b"%X\r\n%b\r\n" % (len(part), part) for part in parts]
        self._held += b"".join(parts)
        self._ahead = 0
        if last and self._chunked:
            return True
        if self._sock.timeout != 0:
            self._sock.settimeout(0)
        try:
            self._held = self._held[self._sock.send(self._held) :]
            self._has_sent = True
        except OSError:  # if the client is gone, `flush` says so
            return False
        return not self._held

    def flush(self) -> None:
        """Send what was held or left. Cuts off a client that reads too slowly, as `sendall` does."""
        if self._held:
            self.sendall(b"")

    def hold_next(self) -> None:
        """Send the next data together with what follows. Call this only if something follows at once."""
        self._holds_next = True

    def _write(self, data: bytes, *flags: int) -> None:
        try:
            self._sock.settimeout(0)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                sent = self._sock.send(data, *flags)
                self._has_sent = True
            if sent < len(data):
                self._write_slowly(memoryview(data)[sent:], *flags)
        except OSError as error:
            self.has_failed = True
            if isinstance(error, TimeoutError):
                self.cut()
            if self._closing:
                raise ConnectionResetError(errno.ECONNRESET, "the client does not read its answer") from error
            raise

    def _write_slowly(self, rest: memoryview, *flags: int) -> None:
        """Write to a client that still has to read what was sent before."""
        deadline = time.monotonic() + self._limits.client_timeout
        self._is_writing = True
        try:
            while rest:
                now = time.monotonic()
                self._waiting.pop(self, None)  # re-added below as the most recent
                self._waiting[self] = now
                self._sock.settimeout(max(min(deadline, self._write_deadline) - now, _SHORTEST))
                sent = self._sock.send(rest, *flags)
                deadline = self._extended(deadline, sent)
                rest = rest[sent:]
        finally:
            self._is_writing = False
            self._waiting.pop(self, None)

    def limit_writes(self, deadline: float) -> None:
        """Stop writing this answer at the monotonic time `deadline`, whatever the client does."""
        self._write_deadline = deadline

    # Ending

    def has_sent(self) -> bool:
        """Tell whether the kernel has taken data since this was last called, or since the request began.

        If the client has left meanwhile, it refuses the next data, so there is no need to ask for the state of the connection.
        """
        sent, self._has_sent = self._has_sent, False
        return sent

    def ask(self) -> bool:
        """Find out whether a client that has closed its sending side still reads. False if it certainly does not.

        A half-closed client and one that has left look the same until something is sent: the first accepts it, the
        kernel of the other answers with a reset. So the next byte of the answer is sent early if it is known: part of
        the start of the status line, or a leading zero of a chunk size. This is repeated at growing intervals, because
        a half-closed client may still leave.
        """
        now = time.monotonic()
        if now < self._next_question or self in self._waiting or self._held or self._ahead == len(_STATUS_LINE):
            return True
        if self._answering and not self._chunked:
            return True
        byte = b"0" if self._answering else _STATUS_LINE[self._ahead : self._ahead + 1]
        self._sock.settimeout(0)
        try:
            self._sock.send(byte)
        except OSError:
            return False
        self._ahead += 1
        self._next_question = now + _FIRST_QUESTION * 2**self._ahead
        return True

    def hang_up(self) -> None:
        """End the connection. A greenlet that is waiting for the client wakes up and reads end-of-file."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def give_up(self) -> None:
        """End the connection of a client that has been silent for long. A WebSocket's is told, if it reads."""
        if not self._farewell or self._is_writing:
            self.cut()
            return
        with contextlib.suppress(OSError):
            self._sock.settimeout(0)
            self._sock.send(self._farewell)
        self.hang_up()

    def cut(self) -> None:
        """Hang up and have the kernel discard what the client has not read."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.hang_up()

    def close(self) -> None:
        """Close the socket.

        If the client is still sending, read that first: otherwise it could get a reset instead of its answer.
        """
        if self._phase is _Phase.REST and not self._closing:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
                while self.recv(1 << 16):
                    give_way()
        self._waiting.pop(self, None)
        self._sock.close()
