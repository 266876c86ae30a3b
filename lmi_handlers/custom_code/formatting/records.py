"""Calls output formatters that get responses: LMI's third generation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lmi_handlers.custom_code.formatting.responses import Response, SentEvent, encode, encode_like_python

_DONE = b"[DONE]"
_EVENT = b"data: "


class ResponseCall:
    """An output formatter of responses, whole or in chunks. `takes_dicts` says that it gets LMI's documents as dicts."""

    def __init__(self, function: Callable[..., Any], result: Callable[[Any], Any], *, takes_dicts: bool) -> None:
        """`result` waits for a coroutine."""
        self._function = function
        self._result = result
        self._takes_dicts = takes_dicts

    def __call__(self, data: bytes, *, streams: bool) -> bytes:
        """Return the bytes to send in place of a document or, for a stream, of several records.

        Raises whatever the function raises, and `TypeError` if it returns something wrong.
        """
        if not streams:
            value = self._argument(data)
            if isinstance(value, list):  # the answers to several prompts
                return b"[" + b", ".join([self._call(item, b"", b"") for item in value]) + b"]\n"
            return self._call(value, b"", b"\n")
        if data.startswith(_EVENT):
            records = [record for record in data.split(b"\n\n") if record]
            return b"".join([self._format_event(record.removeprefix(_EVENT)) for record in records])
        return b"".join([self._call(self._argument(line, is_chunk=True), b"", b"\n") for line in data.splitlines()])

    def _format_event(self, data: bytes) -> bytes:
        if data == _DONE:
            return _EVENT + data + b"\n\n"
        return self._call(self._argument(data, is_chunk=True), _EVENT, b"\n\n")

    def _argument(self, data: bytes, *, is_chunk: bool = False) -> Any:
        value = json.loads(data)
        if self._takes_dicts or not isinstance(value, dict):
            return value
        return SentEvent(f"data: {data.decode()}\n\n", value) if is_chunk else Response(value)

    def _call(self, argument: Any, before: bytes, after: bytes) -> bytes:
        value = self._result(self._function(argument))
        if isinstance(value, str | bytes) and value is not argument:
            data = value.encode(errors="replace") if isinstance(value, str) else value
            return data if data.endswith(b"\n") or not data else data + b"\n"
        document = encode_like_python(value) if self._takes_dicts else encode(value)
        if document is None:
            raise TypeError(
                f"{self._function.__name__} returned {type(value).__name__}: it must return the response, a dict, or text"
            )
        return before + document + after
