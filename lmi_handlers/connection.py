"""Whether the client is still there, asked of the kernel without reading from the socket.

Reading would take bytes of a next request away from the server, and under gevent two greenlets must not wait on one socket.
"""

from __future__ import annotations

import _socket
import os
import socket
from collections.abc import Mapping
from typing import Any

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_OPEN = 1  # TCP_ESTABLISHED; the first byte of Linux's struct tcp_info is the state


def client_connected(environ: Mapping[str, Any]) -> bool:
    """False once the peer has closed. True where nobody can tell: not a TCP socket, not Linux, not gunicorn."""
    sock = environ.get("gunicorn.socket")
    if sock is None:
        return True
    if sock.family == socket.AF_UNIX:
        return not _at_end(sock)
    if _TCP_INFO is None:
        return True
    try:
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)
    except OSError:
        return False
    return state[0] == _OPEN


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
