"""The request bodies that are arriving in a web worker: together they are limited, whatever their number."""

from __future__ import annotations

import io
import threading
from typing import IO

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.core.event_loop import give_way

_PIECE = 1 << 16


class ArrivingBodies:
    """Reads request bodies. A web worker holds at most twice `limit` bytes of incomplete bodies.

    Once more than `limit` bytes are held, a body is refused if it is larger than an equal share of the remaining room.
    So small bodies get through even if clients keep large ones incomplete on purpose.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._bodies = 0
        self._lock = threading.Lock()  # with gthread, requests are threads

    @classmethod
    def of(cls, max_request_size: int) -> ArrivingBodies:
        """Set the limit to four bodies of the maximum size, and at least 256 MiB."""
        return cls(max(256 << 20, 4 * max_request_size))

    def read(self, stream: IO[bytes]) -> bytes:
        """Read a body to its end. Raises `QueueFull`.

        It is read in pieces, because a body that arrives fast would otherwise block the event loop until complete.
        """
        body = io.BytesIO()  # its getvalue() does not copy
        self._count(bodies=1)
        try:
            while piece := stream.read(_PIECE):
                body.write(piece)
                self._count(size=len(piece))
                self._check(body.tell())
                if len(piece) == _PIECE:
                    give_way()
            return body.getvalue()
        finally:
            self._count(bodies=-1, size=-body.tell())

    def _count(self, bodies: int = 0, size: int = 0) -> None:
        with self._lock:
            self._bodies += bodies
            self._held += size

    def _check(self, size: int) -> None:
        if self._held > self._limit and size > (2 * self._limit - self._held) / self._bodies:
            raise QueueFull(
                f"no room for a large request body: {self._bodies} bodies with {self._held >> 20} MiB are arriving",
                code="large_bodies_arriving",
            )
