"""Finds the generated text in answers and streams of any of our formats, as it arrives."""

from __future__ import annotations

import codecs
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from lmi_handlers.tools.client.apis import Said, error_in, said
from lmi_handlers.tools.client.errors import AnswerFailed

STREAMS = ("text/event-stream", "application/jsonlines", "application/x-ndjson", "application/jsonl")
"""Content types of streams, whose records are lines or events."""

_MAX_LINE = 64 * 2**20


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
        for line in _lines(parts):
            if (data := document(line)) is not None:
                record = parsed(data)
                yield from _pieces_of(said(record), data + b"\n" if record is None else b"")
    elif kind == "application/json":
        body = b"".join(parts)
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


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
        if len(rest) > _MAX_LINE:
            raise AnswerFailed(f"a line of the answer is longer than {_MAX_LINE} bytes; --raw prints any answer")
    if rest:
        yield rest
