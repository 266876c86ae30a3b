"""A request's connection: whether the client is still connected, and a time limit on writing the answer.

The connection state comes from the kernel, not from reading the socket: a read would take bytes of the next request
away from the server, and under gevent two greenlets must not wait on one socket.
"""

from __future__ import annotations

import _socket
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from flask import Request, request

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_ESTABLISHED, _CLOSE_WAIT = 1, 8  # the first byte of Linux's struct tcp_info is the state
_SHORTEST = 0.001


def current_request() -> Request:
    """Return the request that Flask is handling. Each use of Flask's own `request` would look it up again, in five calls."""
    return request._get_current_object()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001  Flask documents it


def client_connected(environ: Mapping[str, Any]) -> bool:
    """False once the client has disconnected. True if that is unknown: without gunicorn, or for TCP outside Linux.

    A client that has closed only its sending side is still connected. `ClientSocket` can tell the difference; with any
    other socket, as in gthread workers, that client counts as gone.
    """
    sock = environ.get("gunicorn.socket")
    if sock is None or (hasattr(sock, "has_sent") and sock.has_sent()):
        return True
    if sock.family == socket.AF_UNIX:
        return not _at_end(sock) or _still_reads(sock)
    if _TCP_INFO is None:
        return True
    try:
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)
    except OSError:
        return False
    return state[0] == _ESTABLISHED or (state[0] == _CLOSE_WAIT and _still_reads(sock))


def local_port(environ: Mapping[str, Any]) -> int | None:
    """Return the TCP port on which the request arrived, whatever its headers say. None if it came in another way."""
    sock = environ.get("gunicorn.socket")
    address = None if sock is None else sock.getsockname()
    return address[1] if isinstance(address, tuple) else None


def limit_writes(environ: Mapping[str, Any], deadline: float) -> None:
    """Make writes fail at the monotonic time `deadline`, even if the client reads slowly or not at all.

    `ClientSocket` remembers the deadline. Any other socket, as in gthread workers, only has a timeout per write, so
    call this before each write.
    """
    sock = environ.get("gunicorn.socket")
    if sock is None:
        return
    if hasattr(sock, "limit_writes"):
        sock.limit_writes(deadline)
    else:
        given = sock.gettimeout()
        left = max(deadline - time.monotonic(), _SHORTEST)
        sock.settimeout(left if given is None else min(given, left))


def hold_next(environ: Mapping[str, Any]) -> None:
    """Send the next data together with what follows at once. Only `ClientSocket` does that."""
    sock: Any = environ.get("gunicorn.socket")
    if hasattr(sock, "hold_next"):
        sock.hold_next()


def _still_reads(sock: Any) -> bool:
    return hasattr(sock, "ask") and sock.ask()


def _at_end(sock: socket.socket) -> bool:
    """True if the client closed a Unix socket. Its state can only be peeked at, here on a copy hidden from gevent."""
    try:
        twin = _socket.socket(fileno=os.dup(sock.fileno()))
    except OSError:
        return True
    try:
        return twin.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        twin.close()
