"""Finds the generated text in answers and streams of any of our formats, as it arrives."""

from __future__ import annotations

import codecs
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from lmi_handlers.tools.client.apis import Said, error_in, said
from lmi_handlers.tools.client.errors import AnswerTooLong

STREAMS = ("text/event-stream", "application/jsonlines", "application/x-ndjson", "application/jsonl")
"""Content types of streams, whose records are lines or events."""

MAX_DOCUMENT = 64 * 2**20
"""Bytes that are read of a document: an answer that is no stream, or a line of a stream."""


class Piece(NamedTuple):
    """A piece of the answer, or of the reasoning that some models write before it.

    With the last piece may come a `continuation`, the token with which a request continues the answer.
    """

    text: str
    is_reasoning: bool = False
    continuation: str | None = None


def pieces(parts: Iterable[bytes], content_type: str) -> Iterator[Piece]:
    """Yield the generated text piece by piece, and anything else as it is.

    A part may end anywhere, even inside a character. Raises `AnswerFailed`.
    """
    kind = media_type(content_type)
    if kind in STREAMS:
        for line in _all_lines(parts):
            if (data := document(line)) is not None:
                record = parsed(data)
                yield from _pieces_of(said(record), data + b"\n" if record is None else b"")
    elif kind == "application/json":
        body = whole(parts)
        yield from _pieces_of(said(parsed(body)), body)
    else:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for part in parts:
            yield Piece(decoder.decode(part))


def _pieces_of(record: Said, otherwise: bytes) -> Iterator[Piece]:
    if record.reasoning:
        yield Piece(record.reasoning, is_reasoning=True)
    text = otherwise.decode(errors="replace") if record.text is None else record.text
    yield Piece(text, continuation=record.continuation)


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def document(line: bytes) -> bytes | None:
    """Return the document in a line of server-sent events or JSON lines, or None if the line has none."""
    line = line.strip()
    if line.startswith((b":", b"event:", b"id:", b"retry:")):
        return None
    data = line.removeprefix(b"data:").strip()
    return None if data in (b"", b"[DONE]") else data


def parsed(data: bytes) -> Any:
    """Return a JSON document, or None if it is none."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(data)
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(data)  # slow, and takes what other servers write: NaN, and halves of surrogate pairs
    return None


def failure_cause(body: bytes) -> str:
    """Return the cause that the body of an error response gives, in one line."""
    record = parsed(body)
    cause: object = None
    if isinstance(record, Mapping):
        cause = error_in(record) or record.get("message") or record.get("detail")
    return " ".join(str(cause or body.decode(errors="replace")).split())


def whole(parts: Iterable[bytes]) -> bytes:
    """Return an answer that is read as a whole. Raises `AnswerTooLong`."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > MAX_DOCUMENT:
            raise AnswerTooLong(f"the answer is longer than {MAX_DOCUMENT} bytes")
    return bytes(body)


class Lines:
    """Splits an answer into lines, as it arrives."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def add(self, part: bytes) -> list[bytes]:
        """Return the lines that end in the next part. Raises `AnswerTooLong` if the last one has not ended for too long."""
        if len(self._rest) > MAX_DOCUMENT:
            raise AnswerTooLong(f"a line of the answer is longer than {MAX_DOCUMENT} bytes")
        first, *others = part.split(b"\n")
        self._rest += first
        if not others:
            return []
        complete = [bytes(self._rest), *others[:-1]]
        self._rest = bytearray(others[-1])
        return complete

    @property
    def rest(self) -> bytes:
        """What has arrived of a line without its end. The last one needs none."""
        return bytes(self._rest)


def _all_lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    lines = Lines()
    for part in parts:
        yield from lines.add(part)
    yield lines.rest
