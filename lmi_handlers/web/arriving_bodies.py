"""The request bodies that are arriving in a web worker: together they are limited, whatever their number."""

from __future__ import annotations

import io
import threading

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Request

from lmi_handlers.core.errors import PayloadTooLarge, QueueFull, UnsupportedMediaType
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

    def whole(self, request: Request, max_request_size: int) -> bytes:
        """Read the body of a request to our API. Raises `PayloadTooLarge` if it has more than `max_request_size` bytes.

        Raises `UnsupportedMediaType` if it is compressed, and `QueueFull`.
        """
        coding = request.headers.get("Content-Encoding", "identity")
        if coding.lower() not in ("", "identity"):
            raise UnsupportedMediaType(f"Content-Encoding {coding[:20]!r} is not supported: send the body as it is")
        try:
            data = self.read(request)
        except RequestEntityTooLarge:
            data = None
        if data is None or len(data) > max_request_size:
            raise PayloadTooLarge(f"the request body is larger than max_request_size ({max_request_size} bytes)")
        return data

    def read(self, request: Request) -> bytes:
        """Read the body of a request to its end. Raises `QueueFull`, and werkzeug's `RequestEntityTooLarge`.

        It is read in pieces, because a body that arrives fast would otherwise block the event loop until complete.
        """
        stream = request.stream
        piece = stream.read(_PIECE)
        if len(piece) == request.content_length:  # as most are: no incomplete body is held
            return piece
        body = io.BytesIO()  # its getvalue() does not copy
        with self.arriving() as held:
            while piece:
                body.write(piece)
                held.add(len(piece))
                if len(piece) == _PIECE:
                    give_way()
                piece = stream.read(_PIECE)
            return body.getvalue()

    def arriving(self) -> ArrivingBody:
        """Return a context that counts one incomplete body."""
        return ArrivingBody(self)

    def count(self, bodies: int = 0, size: int = 0) -> None:
        """Add to what is held."""
        with self._lock:
            self._bodies += bodies
            self._held += size

    def check(self, size: int) -> None:
        """Raise `QueueFull` if a body of which `size` bytes have arrived takes too much of the room."""
        if self._held > self._limit and size > (2 * self._limit - self._held) / self._bodies:
            raise QueueFull(
                f"no room for a large request body: {self._bodies} bodies with {self._held >> 20} MiB are arriving",
                code="large_bodies_arriving",
            )


class ArrivingBody:
    """One incomplete body, of which bytes are counted as they arrive."""

    def __init__(self, bodies: ArrivingBodies) -> None:
        self._bodies = bodies
        self._size = 0

    def __enter__(self) -> ArrivingBody:
        self._bodies.count(bodies=1)
        return self

    def add(self, size: int) -> None:
        """Count `size` more bytes. Raises `QueueFull`."""
        self._size += size
        self._bodies.count(size=size)
        self._bodies.check(self._size)

    def __exit__(self, *error: object) -> None:
        self._bodies.count(bodies=-1, size=-self._size)
