"""Finds the generated text in answers and streams of any of our formats, as it arrives."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_STREAMS = ("text/event-stream", "application/jsonlines", "application/x-ndjson", "application/jsonl")
_MAX_LINE = 64 * 2**20


class AnswerFailed(Exception):
    """The answer says that generation failed. The text is the cause."""


class Piece(NamedTuple):
    """A piece of the answer, or of the reasoning that some models write before it."""

    text: str
    is_reasoning: bool = False


def texts(parts: Iterable[bytes], content_type: str) -> Iterator[str]:
    """Yield the answer's text as `pieces` does, without the reasoning."""
    return (piece.text for piece in pieces(parts, content_type) if not piece.is_reasoning)


def pieces(parts: Iterable[bytes], content_type: str) -> Iterator[Piece]:
    """Yield the generated text piece by piece, and anything else as it is.

    A part may end anywhere, even inside a character. Raises `AnswerFailed`.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _STREAMS:
        for line in _lines(parts):
            yield from _of_line(line)
    elif kind == "application/json":
        body = b"".join(parts)
        record = _parsed(body)
        text = _of_record(record)
        yield from _reasoning_in(record)
        yield Piece(body.decode(errors="replace") if text is None else text)
    else:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for part in parts:
            yield Piece(decoder.decode(part))


def failure_cause(body: bytes) -> str:
    """Return the cause that the body of an error response gives, in one line."""
    record = _parsed(body)
    cause: object = None
    if isinstance(record, Mapping):
        try:
            _check(record)
        except AnswerFailed as error:
            cause = error
        else:
            cause = record.get("message") or record.get("detail")
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


def _of_line(line: bytes) -> Iterator[Piece]:
    """Yield the text in a line of JSON or of server-sent events."""
    line = line.strip()
    if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
        return
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        return
    record = _parsed(data)
    if record is None:
        yield Piece(data.decode(errors="replace") + "\n")
        return
    text = _of_record(record, streams=True) or ""
    yield from _reasoning_in(record)
    yield Piece(text)


def _reasoning_in(record: Any) -> Iterator[Piece]:
    """Yield the reasoning in a record of OpenAI's APIs, which other servers call `reasoning`."""
    if not isinstance(record, Mapping):
        return
    found: list[Any] = [record.get("delta")] if record.get("type") in _REASONING_EVENTS else []
    for choice in record["choices"] if isinstance(record.get("choices"), list) else ():
        said = (choice.get("delta") or choice.get("message")) if isinstance(choice, Mapping) else None
        if isinstance(said, Mapping):
            found.append(said.get("reasoning_content") or said.get("reasoning"))
    for item in record["output"] if isinstance(record.get("output"), list) else ():
        if _is_reasoning(item) and isinstance(item.get("content"), list):
            found += [part.get("text") for part in item["content"] if isinstance(part, Mapping)]
    yield from (Piece(text, is_reasoning=True) for text in found if isinstance(text, str) and text)


_REASONING_EVENTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


def _is_reasoning(item: object) -> bool:
    return isinstance(item, Mapping) and item.get("type") == "reasoning"


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _of_record(record: Any, *, streams: bool = False) -> str | None:
    """Return the text of a record, or None if it has none. Raises `AnswerFailed`."""
    if isinstance(record, list):
        found = [text for item in record if (text := _of_record(item)) is not None]
        return "\n".join(found) if found else None
    if not isinstance(record, Mapping):
        return None
    _check(record)
    if streams and isinstance(record.get("token"), Mapping):  # LMI, TGI, MindIE; the last one repeats the whole text
        return None if record["token"].get("special") is True else _string(record["token"].get("text"))
    if isinstance(record.get("type"), str) and record["type"].startswith("response."):  # OpenAI's responses
        return _string(record.get("delta")) if record["type"] == "response.output_text.delta" else None
    if isinstance(choices := record.get("choices"), list):  # OpenAI
        return _joined(_of_choice(choice) for choice in choices if isinstance(choice, Mapping))
    if isinstance(completions := record.get("completions"), list):  # Aleph Alpha
        return _joined(_string(item.get("completion")) for item in completions if isinstance(item, Mapping))
    if isinstance(output := record.get("output"), list):  # an OpenAI response, whole
        said = (item for item in output if isinstance(item, Mapping) and not _is_reasoning(item))
        parts = (part for item in said for part in item.get("content") or ())
        return _joined(_string(part.get("text")) for part in parts if isinstance(part, Mapping))
    return next((text for key in _TEXTS if (text := _string(record.get(key))) is not None), None)


_TEXTS = ("generated_text", "completion", "translation_text", "summary_text", "text")


def _of_choice(choice: Mapping[str, Any]) -> str | None:
    for key in ("delta", "message"):
        if isinstance(inner := choice.get(key), Mapping):
            return _string(inner.get("content"))
    return _string(choice.get("text"))


def _check(record: Mapping[str, Any]) -> None:
    failed = record.get("response") if record.get("type") == "response.failed" else record  # OpenAI's responses
    error = failed.get("error") if isinstance(failed, Mapping) else None
    details = record.get("details")
    if isinstance(error, Mapping):
        raise AnswerFailed(str(error.get("message") or error))
    if isinstance(error, str):
        raise AnswerFailed(error)
    if record.get("type") in ("error", "response.failed"):
        raise AnswerFailed(str(record.get("message") or "generation failed"))
    if isinstance(details, Mapping) and details.get("finish_reason") == "error":
        token = record.get("token")
        cause = token.get("error_msg") if isinstance(token, Mapping) else None
        raise AnswerFailed(str(cause or "generation failed"))


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _joined(found: Iterable[str | None]) -> str | None:
    kept = [text for text in found if text is not None]
    return "\n".join(kept) if kept else None
