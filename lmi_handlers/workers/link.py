"""A web worker's connection to another process, which is made again whenever it ends.

It uses plain threads and sockets. In a gevent worker, gevent replaces them with its own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from lmi_handlers.core.errors import LMIError

RECONNECT_INTERVAL = 0.1
_WATCH_INTERVAL = 0.1
_LONGEST_RECONNECT_INTERVAL = 10.0


class InFlight(Protocol):
    """A request over a link, from its start to its end."""

    def put(self, item: LMIError, /) -> None:
        """Add the error with which it ends."""

    def watch(self, now: float) -> None:
        """End the request if its client has left or its deadline has been reached at the monotonic time `now`."""


class Link:
    """Connects to the process that listens on a Unix socket, and calls `serve` with each connection.

    `serve` returns once the connection has ended. It returns False if it could not handle what has arrived. Then there
    is a pause before the next connection, and a longer one each time: a permanent failure must not keep this process busy.
    The requests that are `in_flight` are watched, even while nothing arrives.
    """

    def __init__(
        self,
        path: Path,
        serve: Callable[[socket.socket], bool],
        *,
        name: str,
        in_flight: Collection[InFlight],
    ) -> None:
        self._path = path
        self._serve = serve
        self._name = name
        self._in_flight = in_flight
        self._connection: socket.socket | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        threading.Thread(target=self._watch, name=f"{self._name}-watch", daemon=True).start()

    def fail_all(self, error: LMIError) -> None:
        """End all requests that are in flight."""
        for request in list(self._in_flight):
            request.put(error)

    def close(self) -> None:
        """Disconnect, and end the threads."""
        self._closed.set()
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the other end may have closed it already
                self._connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        interval = RECONNECT_INTERVAL
        while not self._closed.is_set():
            try:
                sock = connect(self._path)
            except OSError:  # nobody is listening, or no file descriptor is left
                time.sleep(RECONNECT_INTERVAL)
                continue
            with sock:
                self._connection = sock
                if self._closed.is_set():  # meanwhile
                    return
                handled = self._serve(sock)
            if handled:
                interval = RECONNECT_INTERVAL
                continue
            time.sleep(interval)
            interval = min(2 * interval, _LONGEST_RECONNECT_INTERVAL)

    def _watch(self) -> None:
        while not self._closed.is_set():
            time.sleep(_WATCH_INTERVAL)
            now = time.monotonic()
            for request in list(self._in_flight):
                request.watch(now)


def connect(path: Path) -> socket.socket:
    """Return a connection to the process that listens on a Unix socket. Raises `OSError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    return sock
