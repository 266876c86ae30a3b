"""A request's connection: whether its client is still there, and how long an answer may be written to it.

Both are asked of the kernel without reading from the socket: reading would take bytes of a next request away from the
server, and under gevent two greenlets must not wait on one socket.
"""

from __future__ import annotations

import _socket
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_ESTABLISHED, _CLOSE_WAIT = 1, 8  # the first byte of Linux's struct tcp_info is the state
_SHORTEST = 0.001


def client_connected(environ: Mapping[str, Any]) -> bool:
    """False once the client has gone. True where nobody can tell: not a TCP socket, not Linux, not gunicorn.

    A client that has closed its sending side only is still there. `ClientSocket` can tell the two apart; over any other
    socket, as gthread's workers have them, it counts as gone.
    """
    sock = environ.get("gunicorn.socket")
    if sock is None:
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


def limit_writes(environ: Mapping[str, Any], deadline: float) -> None:
    """Have the next write end at the monotonic time `deadline`, though the client reads slowly or not at all.

    `ClientSocket` remembers it; any other socket, as gthread's workers have them, has a time limit per write, so tell it
    before each of them.
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


def _still_reads(sock: Any) -> bool:
    return hasattr(sock, "ask") and sock.ask()


def _at_end(sock: socket.socket) -> bool:
    """Peek through a copy of the descriptor that gevent knows nothing of: the kernel tells no state of a Unix socket."""
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
