"""Ends a connection after some time. A timeout for each read does not: a peer can send single bytes forever."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ended_after(connection: socket.socket, seconds: float) -> Iterator[threading.Event]:
    """Shut the connection down after `seconds`, unless the block has ended before. The event tells that this has happened."""
    expired = threading.Event()

    def end() -> None:
        expired.set()
        with contextlib.suppress(OSError):  # it has just ended by itself
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        timer.join()
