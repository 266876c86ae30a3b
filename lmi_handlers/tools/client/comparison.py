"""Compares an answer with the one that was expected, and says in one word how they differ."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from lmi_handlers.tools.client.answer import STREAMS, media_type
from lmi_handlers.tools.client.answer_format import MAX_DEPTH, AnswerFormat, records
from lmi_handlers.tools.client.apis import said
from lmi_handlers.tools.client.errors import AnswerFailed

VOLATILE = (
    *("id", "request_id", "response_id", "message_id", "item_id", "call_id", "tool_call_id", "previous_response_id"),
    *("created", "created_at", "completed_at", "timestamp", "system_fingerprint"),
)
"""Fields that no two answers have alike: identifiers, times, and the server's version. Numbers named `id` are tokens."""

_OF_A_MODEL = re.compile(r"\.(?:input|arguments)(?:[.\[]|$)")
"""Paths of the input that a model gives to a tool. All fields there belong to the answer, also those with volatile names."""

_CONTEXT = 60
_LONGEST_VALUE = 80
_ROUNDING = 1e-2
"""Largest difference of two numbers that may come from rounding, relative to the larger one or to 1.

For lists of numbers, such as embeddings, it is that of the vectors: many small differences are a large one together.
"""


class Kind(str, Enum):
    """The kinds of differences between an answer and the expected one, from the least to the greatest.

    `EQUAL` is byte for byte, but for volatile fields. `FORM` is the same format, and no more was compared, because the text
    was sampled; but if there is no text any more, that is another text. `ROUNDING` is for numbers that are almost equal,
    and for a text that goes on with a token that was almost as probable. `VALUES` is the same text, with other values in
    the same fields: a finish reason, a count, or the records that it is split into. `FORMAT` is for other fields, types or
    framing, and for the same document written differently.
    """

    EQUAL = "equal"
    FORM = "form"
    ROUNDING = "rounding"
    VALUES = "values"
    TEXT = "text"
    FORMAT = "format"
    STATUS = "status"


class CompleteAnswer(msgspec.Struct, frozen=True):
    """A complete answer, as it was sent or recorded. An expected one without a content type may have any."""

    status: int
    content_type: str
    body: bytes


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome. `detail` says what is different, in one line.

    `offset` is the first differing byte of the expected body, volatile fields aside; `expected` and `received` are
    excerpts around it. `but_for` are the volatile fields that differ.
    """

    kind: Kind
    detail: str = ""
    offset: int | None = None
    expected: str = ""
    received: str = ""
    but_for: tuple[str, ...] = ()


def compare(
    expected: CompleteAnswer, received: CompleteAnswer, *, sampled: bool = False, volatile: Iterable[str] = VOLATILE
) -> Comparison:
    """Compare two answers. With `sampled`, their texts and values may differ. `volatile` are fields to leave out."""
    if not expected.content_type:
        expected = msgspec.structs.replace(expected, content_type=received.content_type)
    types = media_type(expected.content_type), media_type(received.content_type)
    masks = _Masks(volatile)
    old, new = masks.masked(expected), masks.masked(received)
    if (expected.status, types[0], old.body) == (received.status, types[1], new.body):
        but_for = old.different(new)
        hidden = _hidden(expected, received, masks) if but_for else ""
        return Comparison(kind=Kind.VALUES if hidden else Kind.EQUAL, detail=hidden, but_for=but_for)
    place = first_difference(old.body, new.body)
    around: dict[str, Any] = {} if place is None else {"offset": old.original(place), **_context(old, new, place)}
    if expected.status != received.status:
        kind, detail = Kind.STATUS, f"status {expected.status}, now {received.status}"
    elif types[0] != types[1]:
        kind, detail = Kind.FORMAT, f"content type {_cut(types[0])}, now {_cut(types[1]) or 'none'}"
    else:
        kind, detail = _classified(expected.body, received.body, types[0], masks, sampled=sampled)
    return Comparison(kind=kind, detail=detail, but_for=old.different(new), **around)


def _hidden(expected: CompleteAnswer, received: CompleteAnswer, masks: _Masks) -> str:
    """Describe a difference in the input of a tool that a volatile field hides, or return ""."""
    old, new = (records(reply.body, received.content_type) for reply in (expected, received))
    found = differences(old or [], new or [], masks.names)
    return next((f"{path} {_change(mine, other)}" for path, mine, other in found), "")


def _classified(
    expected: bytes, received: bytes, content_type: str, masks: _Masks, *, sampled: bool
) -> tuple[Kind, str]:
    """Return the kind of difference between two bodies, and a description."""
    old, new = records(expected, content_type), records(received, content_type)
    if old is None or new is None:
        if (old is None) != (new is None):
            return Kind.FORMAT, f"{'not ' if old is None else ''}JSON, now {'not ' if new is None else ''}JSON"
        texts = expected.decode(errors="replace"), received.decode(errors="replace")
        return _sampled(*texts) if sampled else (Kind.TEXT, _parting(*texts))
    mine, other = AnswerFormat.of(expected, old, content_type), AnswerFormat.of(received, new, content_type)
    if difference := mine.difference(other):
        return Kind.FORMAT, difference
    texts = text_of(old), text_of(new)
    if sampled:
        return _sampled(*texts)
    if texts[0] != texts[1]:
        return Kind.TEXT, _parting(*texts)
    if len(old) != len(new):
        return Kind.VALUES, f"{len(old)} records, now {len(new)}, with the same text"
    return _values(old, new, masks)


def _sampled(old: str, new: str) -> tuple[Kind, str]:
    return (Kind.TEXT, "there is no text any more") if old and not new else (Kind.FORM, "")


def _values(old: list[Any], new: list[Any], masks: _Masks) -> tuple[Kind, str]:
    """Compare documents of the same format and text."""
    almost = ""
    for path, mine, other in differences(old, new, masks.names):
        detail = f"{path} {_change(mine, other)}"
        if not _almost_equal(mine, other):
            return Kind.VALUES, detail
        almost = almost or detail
    return (Kind.ROUNDING, almost) if almost else (Kind.FORMAT, "the same values, written differently")


def text_of(documents: list[Any]) -> str:
    """Return the generated text of an answer, with its reasoning. Empty if it has none."""
    return "".join(_texts(documents))


def _texts(documents: list[Any]) -> Iterator[str]:
    for each in documents:
        with contextlib.suppress(AnswerFailed, RecursionError):
            record = said(each)
            yield record.reasoning + (record.text or "")


def finish_reason_of(documents: list[Any]) -> str:
    """Return why an answer ended, as its last record that says so does. Empty if none does."""
    return next((reason for each in reversed(documents) if (reason := _reason(each))), "")


def _reason(document: Any) -> str:
    if isinstance(document, list):
        document = document[0] if document else None
    if not isinstance(document, Mapping):
        return ""
    inner = [document.get(name) for name in ("details", "delta", "response")]
    for name in ("choices", "completions"):
        inner += document[name][:1] if isinstance(document.get(name), list) else []
    for place in (document, *inner):
        if isinstance(place, Mapping):
            for name in ("finish_reason", "stop_reason", "stop_type", "status"):
                if isinstance(reason := place.get(name), str) and reason not in ("", "in_progress", "queued"):
                    return reason
    return ""


def first_difference(old: bytes, new: bytes) -> int | None:
    """Return the index of the first byte that differs. None if they are equal."""
    if old == new:
        return None
    low, high = 0, min(len(old), len(new))
    while low < high:  # by halves: comparing slices is as fast as memory
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def differences(
    old: list[Any], new: list[Any], volatile: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values of each leaf that differs in two lists of documents, without the `volatile` fields.

    Two vectors of the same length are leaves. What a model gives to a tool has no volatile fields.
    """
    roots = ["$"] if len(old) == 1 else [f"record {number + 1}: $" for number in range(len(old))]
    rest = [(*each, 0) for each in zip(roots, old, new, strict=False)][::-1]
    while rest:
        path, mine, other, depth = rest.pop()
        if depth < MAX_DEPTH and isinstance(mine, dict) and isinstance(other, dict):
            inner = [
                (f"{path}.{name[:_LONGEST_VALUE]}", mine.get(name), other.get(name), depth + 1)
                for name in {**mine, **other}
                if _OF_A_MODEL.search(path) or not _is_volatile(name, mine.get(name), volatile)
            ]
        elif depth < MAX_DEPTH and isinstance(mine, list) and isinstance(other, list) and not _are_vectors(mine, other):
            pairs = itertools.zip_longest(mine, other)
            inner = [(f"{path}[{number}]", *pair, depth + 1) for number, pair in enumerate(pairs)]
        else:
            if not _same(mine, other):
                yield path, mine, other
            continue
        rest += reversed(inner)


def _is_volatile(name: str, value: Any, volatile: frozenset[str]) -> bool:
    return name in volatile and (name != "id" or not isinstance(value, int | float))


def _same(mine: Any, other: Any) -> bool:
    try:
        return bool(mine == other)
    except RecursionError:
        return False


def _are_vectors(mine: Any, other: Any) -> bool:
    """Tell whether both are vectors: equally many numbers, and not only integers, as lists of tokens are."""
    if not isinstance(mine, list) or not isinstance(other, list) or len(mine) != len(other):
        return False
    kinds = {*map(type, mine), *map(type, other)}
    return float in kinds and kinds <= {int, float}


def _almost_equal(mine: Any, other: Any) -> bool:
    old, new = (mine, other) if _are_vectors(mine, other) else ([mine], [other])
    if not _are_vectors(old, new):
        return False
    try:
        return math.dist(old, new) <= _ROUNDING * max(1.0, math.hypot(*old), math.hypot(*new))
    except OverflowError:  # a whole number that no float can be
        return False


def _change(mine: Any, other: Any) -> str:
    if _are_vectors(mine, other):
        return f"is another vector of {len(mine)} numbers"
    return f"was {_shown(mine)}, now {_shown(other)}"


def _shown(value: Any) -> str:
    return _cut(repr(value) if isinstance(value, str | int | float | None) else type(value).__name__)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _parting(old: str, new: str) -> str:
    """Say where two texts part."""
    at = parting_of(old, new)
    both = (repr(text[at : at + _LONGEST_VALUE // 2]) for text in (old, new))
    return f"the text parts after {at} of {len(old)} characters: {', now '.join(both)}"


def parting_of(old: str, new: str) -> int:
    """Return the number of characters that two texts have in common at their beginning."""
    at = first_difference(old.encode("utf-32-le", "surrogatepass"), new.encode("utf-32-le", "surrogatepass"))
    return len(old) if at is None else at // 4


class _Masked(msgspec.Struct, frozen=True):
    """A body with its volatile values replaced.

    From each of `starts`, which are places in the new body, it is shorter than the old one by the number in `gaps`.
    """

    body: bytes
    starts: list[int]
    gaps: list[int]
    values: list[tuple[str, bytes]]

    def original(self, place: int) -> int:
        """Return where a byte was before."""
        return place + ([0, *self.gaps][bisect.bisect_right(self.starts, place)])

    def different(self, other: _Masked) -> tuple[str, ...]:
        """Return the names of the fields whose values differ."""
        pairs = itertools.zip_longest(self.values, other.values, fillvalue=("", b""))
        return tuple(dict.fromkeys(mine[0] or its[0] for mine, its in pairs if mine != its))


class _Masks:
    """Replaces volatile values in bytes, where they are strings or numbers. Everything else stays as it was written."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        fields = b"|".join(re.escape(name.encode()) for name in sorted(self.names))
        self._pattern = re.compile(
            rb'"(?P<name>' + fields + rb')"\s*:\s*(?P<value>"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9][0-9.eE+-]*)'
            rb"|^(?P<line>(?::|id:)[^\n]*\n\r?\n?)",  # comments keep a connection open, and depend on the time
            re.MULTILINE | re.DOTALL,
        )

    def masked(self, reply: CompleteAnswer) -> _Masked:
        """Return the body of an answer without volatile values."""
        body, in_stream = reply.body, media_type(reply.content_type) in STREAMS
        parts, starts, gaps, values = [], [], [], []
        end = length = gap = 0
        for found in self._pattern.finditer(body):
            name, value, line = found["name"], found["value"], found["line"]
            if (line is not None and not in_stream) or (name == b"id" and not value.startswith(b'"')):
                continue
            group = "value" if line is None else "line"
            mask = _MASK if line is None else b""
            part = body[end : found.start(group)]
            parts += [part, mask]
            length += len(part) + len(mask)
            gap += len(found[group]) - len(mask)
            starts.append(length)
            gaps.append(gap)
            if line is None:
                values.append((name.decode(), value))
            end = found.end(group)
        return _Masked(b"".join([*parts, body[end:]]), starts, gaps, values)


_MASK = b'"*"'


def _context(old: _Masked, new: _Masked, place: int) -> dict[str, str]:
    around = slice(max(0, place - _CONTEXT), place + _CONTEXT)
    return {
        "expected": old.body[around].decode(errors="replace"),
        "received": new.body[around].decode(errors="replace"),
    }
