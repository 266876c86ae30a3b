"""The format of an answer: its records, their fields and types, and how they are written, whatever the values are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lmi_handlers.tools.client.answer import STREAMS, document, media_type, parsed

MAX_DEPTH = 64
"""Levels of a document that are looked at. What is below them counts as one value."""

_MAX_PATHS = 10_000
_LONGEST_KEY = 100
_MOST_LINES = 3
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_WHITE_SPACE = {"some": re.compile(rb'":\s'), "none": re.compile(rb'":\S')}
_ESCAPES = {
    "escaped": re.compile(rb"\\u(?:00[89a-fA-F]|0[1-9a-fA-F]|[1-9a-fA-F])"),
    "as they are": re.compile(rb"[\x80-\xff]"),
}


def records(body: bytes, content_type: str) -> list[Any] | None:
    """Return the JSON documents of an answer: the only one, or those of a stream. None if anything in it is not JSON."""
    if media_type(content_type) in STREAMS:
        found = [parsed(data) for line in body.split(b"\n") if (data := document(line)) is not None]
    else:
        found = [parsed(body)]
    return None if any(each is None for each in found) else found


class AnswerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The features of an answer's records that another text in the same format does not change.

    `types` has the JSON types that were seen at each path, such as `{"$.choices[].text": {"string"}}`, `orders` the orders
    in which the fields of each object were written, and `framing` the lines between the documents. `spelling` says how
    the JSON is written, by the aspect: its white space, and characters that can be escaped.
    """

    types: Mapping[str, frozenset[str]]
    orders: Mapping[str, frozenset[tuple[str, ...]]]
    framing: frozenset[str]
    spelling: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, body: bytes, documents: list[Any], content_type: str) -> AnswerFormat:
        """Return the format of an answer with these documents."""
        types: dict[str, set[str]] = {}
        orders: dict[str, set[tuple[str, ...]]] = {}
        for path, value in nodes(documents):
            if path not in types and len(types) >= _MAX_PATHS:
                continue
            types.setdefault(path, set()).add(_type(value))
            if isinstance(value, dict):
                orders.setdefault(path, set()).add(tuple(value))
        streamed = media_type(content_type) in STREAMS
        return cls(
            types={path: frozenset(found) for path, found in types.items()},
            orders={path: frozenset(found) for path, found in orders.items()},
            framing=frozenset(_framing(body)) if streamed else frozenset(),
            spelling=_spelling(body),
        )

    def difference(self, other: AnswerFormat) -> str:
        """Return the first difference between this format and another's, or an empty text. `other` is the newer one."""
        for path, types in self.types.items():
            if path in other.types:
                if not _compatible(types, other.types[path]):
                    return f"{path} was {_any(types)}, now {_any(other.types[path])}"
            elif not self._within_empty(path, other):
                return f"{path} is missing"
        for path in other.types:
            if path not in self.types and not other._within_empty(path, self):
                return f"{path} is new"
        if self.framing != other.framing:
            gone, new = sorted(self.framing - other.framing), sorted(other.framing - self.framing)
            told = [*(f"no line {line!r} any more" for line in gone), *(f"a new line {line!r}" for line in new)]
            return "; ".join(told[:_MOST_LINES])
        for path, orders in self.orders.items():
            if (others := other.orders.get(path)) and not orders & others and _same_fields(orders, others):
                return f"the fields of {path} have another order"
        for aspect, found in self.spelling.items():
            if found and other.spelling[aspect] and not found & other.spelling[aspect]:
                return f"the JSON is written with other {aspect}"
        return ""

    def _within_empty(self, path: str, other: AnswerFormat) -> bool:
        """Tell whether the other format cannot have the path, because a list above it was always empty."""
        parts = re.split(r"(?=\[\])", path)
        for end in range(1, len(parts)):
            above = "".join(parts[:end])
            if above + "[]" not in other.types and "list" in other.types.get(above, ()):
                return True
        return False


def nodes(documents: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield every value in the documents with its path. The items of a list have one path, `[]` after the list's."""
    rest = [("$", document, 0) for document in reversed(documents)]
    while rest:
        path, value, depth = rest.pop()
        yield path, value
        if depth >= MAX_DEPTH:
            continue
        if isinstance(value, dict):
            inner = [(f"{path}.{key[:_LONGEST_KEY]}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            below = f"{path}[]"  # once, for there may be millions
            inner = [(below, item, depth + 1) for item in value]
        else:
            continue
        rest += reversed(inner)


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "list" if isinstance(value, list) else "object"


def _compatible(types: frozenset[str], others: frozenset[str]) -> bool:
    """Tell whether one field may have both types: a text or a number in one answer may be null in another."""
    return bool(types & others) or ("null" in types | others and not (types | others) & {"list", "object"})


def _any(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))


def _same_fields(orders: frozenset[tuple[str, ...]], others: frozenset[tuple[str, ...]]) -> bool:
    fields = {frozenset(order) for order in orders}
    return any(frozenset(order) in fields for order in others)


def _framing(body: bytes) -> Iterator[str]:
    """Yield the lines of a stream without their documents. Comments keep connections open, and depend on the time."""
    for line in body.split(b"\n"):
        if line.startswith((b":", b"id:")) or not line.strip():
            continue
        end = "\r\n" if line.endswith(b"\r") else "\n"
        if (data := document(line)) is not None:
            yield line[: line.index(data)].decode(errors="replace") + "{}" + end
        else:
            yield line.strip()[:_LONGEST_KEY].decode(errors="replace") + end


def _spelling(body: bytes) -> dict[str, frozenset[str]]:
    signs = _STRING.sub(b'""', body)
    return {
        "white space": frozenset(name for name, pattern in _WHITE_SPACE.items() if pattern.search(signs)),
        "escapes": frozenset(name for name, pattern in _ESCAPES.items() if pattern.search(body)),
    }
