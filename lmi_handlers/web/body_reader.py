"""Reads a request body through gunicorn, and turns all read failures into our errors."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import NoMoreData, ParseException

from lmi_handlers.core.errors import ClientDisconnected, MalformedRequest, RequestTimeout
from lmi_handlers.core.event_loop import give_way

_TURN = 0.001
"""Seconds after which other requests get a turn."""


class BodyReader:
    """Wraps gunicorn's body reader of `request`.

    After an error the connection is closed, because the start of the next request is unknown. `complete` is true once
    the body has been read to its end.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._reader = request.body.reader
        self._left: int | None = self._reader.length if isinstance(self._reader, LengthReader) else None
        self.complete = self._left == 0
        self._turn_ends = math.inf
        if isinstance(self._reader, ChunkedReader):
            self._reader.parser = _in_turns(self._reader.parser)
        request.body.reader = self

    def read(self, size: int) -> bytes:
        """Like gunicorn's `read`. Raises `MalformedRequest`, `RequestTimeout` and `ClientDisconnected`."""
        if self.complete:
            return b""
        now = time.monotonic()
        if self._turn_ends == math.inf:
            self._turn_ends = now + _TURN
        elif now > self._turn_ends:  # nothing else waits for a client that sends fast, as while gunicorn drops the rest
            give_way()
            self._turn_ends = time.monotonic() + _TURN
        try:
            return self._read(size)
        except Exception:
            self._request.force_close()
            raise

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._reader.read(size)
        except ParseException as error:
            raise MalformedRequest(f"the chunked body is malformed: {error}") from error
        except NoMoreData as error:
            raise MalformedRequest(
                "the connection was closed before the whole body had arrived", code="body_cut_off"
            ) from error
        except TimeoutError as error:
            raise RequestTimeout("the body did not arrive in time (option.client_timeout)") from error
        except OSError as error:
            raise ClientDisconnected from error
        if self._left is None:
            self.complete = not data
        else:
            if len(data) < min(size, self._left):
                raise MalformedRequest(
                    f"the connection was closed with {self._left - len(data)} bytes of the body missing",
                    code="body_cut_off",
                )
            self._left -= len(data)
            self.complete = self._left == 0
        return data


def _in_turns(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Give way between chunks. Each takes its time, whatever it holds, and a body may have one for each byte."""
    ends = time.monotonic() + _TURN
    for chunk in chunks:
        yield chunk
        if time.monotonic() > ends:
            give_way()
            ends = time.monotonic() + _TURN
