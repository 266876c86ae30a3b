"""Whether the client is still there, asked of the kernel without reading from the socket.

Reading would take bytes of a next request away from the server, and under gevent two greenlets must not wait on one socket.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_OPEN = 1  # TCP_ESTABLISHED; the first byte of Linux's struct tcp_info is the state


def client_connected(environ: Mapping[str, Any]) -> bool:
    """False once the peer has closed. True where nobody can tell: not a TCP socket, not Linux, not gunicorn."""
    sock = environ.get("gunicorn.socket")
    if sock is None or _TCP_INFO is None:
        return True
    try:
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)
    except OSError:
        return bool(sock.fileno() >= 0 and sock.family == socket.AF_UNIX)
    return state[0] == _OPEN
