"""A client's socket with limits: how long the server waits for the client, whatever it waits for.

It works over any socket with timeouts and knows neither gevent nor gunicorn. The worker tells it where its request is:

    idle      no byte of a request yet                   `keepalive` seconds, then the connection closes
    head      a part of the head                         `client_timeout` seconds in all, then `HeadTimeout`
    body      the head is there, the answer is not       `client_timeout` seconds without a byte, then `TimeoutError`
    rest      answered, the body not read to its end     5 seconds without a byte, 30 in all, then the connection closes

A body and each write must also keep up `MIN_RATE` on average. A client that takes no bytes for `client_timeout` seconds
is cut off: its connection is reset, so that the kernel does not keep what it has not read. The kernel does the same with
what is left when all has been written.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import math
import socket
import struct
import time
from typing import Any

import msgspec

MIN_RATE = 1024
"""Bytes per second that a client must send of a body, or take of an answer, on average; after `client_timeout` seconds."""

_TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
_REST_SILENCE = 5.0
_REST_LIMIT = 30.0
_SHORTEST = 0.001
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: discard what is unsent, send a reset
_STATUS_LINE = b"HTTP/1."
_FIRST_QUESTION = 0.5


class HeadTimeout(Exception):
    """A part of a request's head came, the rest did not in time."""


class Limits(msgspec.Struct, frozen=True):
    """Seconds; see the module."""

    client_timeout: float
    keepalive: float


class _Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    REST = enum.auto()


Waiting = dict["ClientSocket", float]
"""The sockets whose client is being waited for, the one that has done nothing for longest first, and since when."""


class ClientSocket:
    """What gunicorn reads requests from and writes answers to; `waiting` has it in while it waits for the client."""

    def __init__(self, sock: socket.socket, limits: Limits, waiting: Waiting) -> None:
        self.in_request = False
        self._sock = sock
        self._limits = limits
        self._waiting = waiting
        self._closing = False
        self._received = 0
        self._begin(_Phase.IDLE, limits.client_timeout)
        self._begin_answer()
        if _TCP_USER_TIMEOUT is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, int(limits.client_timeout * 1000))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    # Where the request is

    def begin_request(self) -> None:
        """The head has been read."""
        self.in_request = True
        self._begin(_Phase.BODY, self._limits.client_timeout)
        self._begin_answer()

    def end_request(self, *, complete: bool) -> None:
        """The answer has been written; `complete` says whether the body had been read to its end."""
        self.in_request = False
        if complete:
            self._begin(_Phase.IDLE, self._limits.keepalive)
        else:
            self.expect_rest()

    def expect_rest(self) -> None:
        """Expect more of a request that nobody will read: it is taken from the client, who might else not see its answer."""
        self._begin(_Phase.REST, _REST_LIMIT)

    def _begin(self, phase: _Phase, limit: float) -> None:
        self._phase = phase
        self._since = time.monotonic()
        self._limit = limit
        self._received = 0

    def _begin_answer(self) -> None:
        self._write_deadline = math.inf
        self._answering = False
        self._chunked = False
        self._ahead = 0
        self._next_question = 0.0

    # Reading

    def recv(self, size: int, *flags: int) -> bytes:
        """As a socket's `recv`, within the limits of the request's phase."""
        if self._hung_up():
            return b""
        now = time.monotonic()
        self._sock.settimeout(max(self._patience(now), _SHORTEST))
        self._waiting[self] = now
        try:
            data = self._sock.recv(size, *flags)
        except TimeoutError:
            if self._phase is _Phase.HEAD:
                raise HeadTimeout from None
            if self._phase is _Phase.BODY:
                raise
            return b""
        except OSError:
            if self._hung_up():  # gevent wakes who waits with an error
                return b""
            raise
        finally:
            self._waiting.pop(self, None)
        if self._phase is _Phase.IDLE:
            self._begin(_Phase.HEAD, self._limits.client_timeout)
        self._received += len(data)
        return data

    def _hung_up(self) -> bool:
        return self._closing

    def _patience(self, now: float) -> float:
        left = self._since + self._limit - now
        if self._phase is _Phase.BODY:
            return min(left + self._received / MIN_RATE, self._limits.client_timeout)
        return min(left, _REST_SILENCE) if self._phase is _Phase.REST else left

    # Writing

    def sendall(self, data: bytes, *flags: int) -> None:
        """As a socket's `sendall`. Raises `ConnectionResetError` where the client takes too few bytes, and cuts it off."""
        rest = memoryview(data)
        if not self._answering:
            self._answering = True
            self._chunked = b"\r\nTransfer-Encoding: chunked\r\n" in data
            rest = rest[self._ahead :]
        elif self._chunked:
            self._chunked = data != b"0\r\n\r\n"
        self._ahead = 0
        begun = self._waiting[self] = time.monotonic()
        try:
            while rest:
                self._sock.settimeout(max(self._write_patience(begun, len(data) - len(rest)), _SHORTEST))
                rest = rest[self._sock.send(rest, *flags) :]
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.cut()
            if self._hung_up():
                raise ConnectionResetError(errno.ECONNRESET, "the client takes no bytes of its answer") from error
            raise
        finally:
            self._waiting.pop(self, None)

    def limit_writes(self, deadline: float) -> None:
        """End writing this answer at the monotonic time `deadline`, whatever the client does."""
        self._write_deadline = deadline

    def _write_patience(self, begun: float, sent: int) -> float:
        now = time.monotonic()
        silence = self._limits.client_timeout
        return min(silence, begun + silence + sent / MIN_RATE - now, self._write_deadline - now)

    # Ending

    def ask(self) -> bool:
        """Find out whether a client that has closed its sending side still reads. False where it certainly does not.

        A half-closed client and one that has left look the same until something is sent to them: the first takes it, the
        other's kernel answers with a reset. So the next byte of the answer is sent ahead, where it is known: the start
        of the status line, or a chunk size's leading zero. Asked again at growing intervals, as even a client that has
        half-closed may leave.
        """
        now = time.monotonic()
        if now < self._next_question or self in self._waiting or self._ahead == len(_STATUS_LINE):
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
        """End the connection; who waits for the client wakes up and finds it at its end."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Hang up and have the kernel forget what the client has not read."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.hang_up()

    def close(self) -> None:
        """Close; where more of a request may come, once it has: the client would see a reset in place of its answer."""
        if self._phase is _Phase.REST and not self._closing:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
                while self.recv(1 << 16):
                    pass
        self._sock.close()
