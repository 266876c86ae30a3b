"""Splits the body of an answer into its documents, and says which rule of its format it breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lmi_handlers.tools.client.answer import STREAMS, media_type

EVENTS = "text/event-stream"
_DONE = b"[DONE]"
_LONGEST_KIND = 60
_FIELDS = (b":", b"id:", b"retry:")


class BrokenFormat(Exception):
    """The body breaks a rule of its content type. The text says which."""


class AnswerRecords(msgspec.Struct, frozen=True):
    """The documents of an answer. `done` is true if events end with `[DONE]`, `named` if each has a line `event:`."""

    documents: list[Any]
    done: bool = False
    named: bool = False

    @classmethod
    def of(cls, body: bytes, content_type: str) -> AnswerRecords:
        """Read a body. One that is neither JSON nor a stream is a single document, its text. Raises `BrokenFormat`."""
        kind = media_type(content_type)
        if kind == EVENTS:
            return _events(body)
        if kind in STREAMS:
            return cls([_document(line) for line in _lines(body)])
        if kind == "application/json":
            return cls([_document(body)])
        return cls([body.decode(errors="replace")])


def kind_of(document: Any, *, is_last: bool) -> str:
    """Return which record of a stream this is: its `type`, if it has one, or else its place in the stream."""
    if not isinstance(document, Mapping):
        return "record"
    if isinstance(document.get("type"), str):
        return str(document["type"])[:_LONGEST_KIND]
    choices = document.get("choices")
    if not isinstance(choices, list):
        return "last record" if is_last else "record"
    if not choices:
        return "chunk with the usage"
    choice = choices[0] if isinstance(choices[0], Mapping) else {}
    if choice.get("finish_reason") is not None:
        return "chunk with the finish reason"
    delta = choice.get("delta")
    return "chunk with the role" if isinstance(delta, Mapping) and "role" in delta else "chunk"


def _lines(body: bytes) -> Iterator[bytes]:
    if body and not body.endswith(b"\n"):
        raise BrokenFormat("the last line has no end")
    return (line for line in body.split(b"\n") if line)


def _events(body: bytes) -> AnswerRecords:
    documents, named, done = [], True, False
    *events, rest = body.replace(b"\r\n", b"\n").split(b"\n\n")
    if rest.strip():
        raise BrokenFormat("the last event is not followed by an empty line")
    for event in events:
        data, has_name = _event(event)
        if data is None:
            continue
        if done:
            raise BrokenFormat("an event follows [DONE]")
        done = data == _DONE
        if not done:
            documents.append(_document(data))
            named = named and has_name
    return AnswerRecords(documents, done, named and bool(documents))


def _event(event: bytes) -> tuple[bytes | None, bool]:
    """Return the data of an event, None if it is only a comment, and whether it has a name."""
    data, has_name = [], False
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif line.startswith(b"event:"):
            has_name = True
        elif line and not line.startswith(_FIELDS):
            raise BrokenFormat(f"a line of an event is {json.dumps(line[:40].decode(errors='replace'))}")
    return b"\n".join(data) if data else None, has_name


def _document(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenFormat(f"{json.dumps(data[:40].decode(errors='replace'))} is not JSON") from error
