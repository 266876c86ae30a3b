"""Reads the bytes of a JSON text without decoding it: how many values it would become, and the text of a single field.

Decoding blocks the event loop, and text made of `{}` takes 20 times its size in memory. This needs no memory that grows
with the text, and it regularly lets other requests run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from lmi_handlers.core.errors import PayloadTooLarge
from lmi_handlers.core.event_loop import give_way


class JsonShape(msgspec.Struct, frozen=True):
    """Counts of a JSON text: objects and arrays, object members, and the commas between members and between items.

    For text that is not valid JSON, each figure is at least what a decoder would have read before it stopped.
    """

    containers: int
    members: int
    commas: int

    @property
    def values(self) -> int:
        """The number of values and names, without the outermost value. Each empty object or array adds one."""
        return self.containers + self.members + self.commas


def json_shape(data: bytes, *, enough: float = math.inf, chunk: int = 1 << 16) -> JsonShape:
    """Count until there are more than `enough` values. Takes 3 ms per MB, in steps of about a millisecond.

    `chunk` is the number of bytes to process at once; it must be even.
    """
    containers = members = commas = start = chunks = 0
    in_string = False
    while start < len(data) and containers + members + commas <= enough:
        end = _chunk_end(data, start, chunk)
        outside, in_string = _outside_strings(data[start:end], in_string)
        outside = outside.translate(None, _NOT_STRUCTURAL)
        containers += outside.count(b"[") + outside.count(b"{")
        members += outside.count(b":")
        commas += outside.count(b",")
        start = end
        chunks += 1
        if not chunks % _CHUNKS_A_TURN:
            give_way()
    return JsonShape(containers, members, commas)


def outer_names(data: bytes, *, enough: int, chunk: int = 1 << 14) -> int:
    """Count the names of a JSON object, without those of the objects in it, until there are more than `enough`.

    Returns 0 for other values. Takes longer than `json_shape` if there are many brackets. Others get turns after each chunk.
    """
    names = depth = start = 0
    in_string = False
    if not begins_object(data):
        return 0
    while start < len(data) and names <= enough:
        end = _chunk_end(data, start, chunk)
        outside, in_string = _outside_strings(data[start:end], in_string)
        outside = outside.translate(None, _NOT_NESTING)
        place = 0
        for bracket in _BRACKET.finditer(outside):
            if depth == 1:
                names += outside.count(b":", place, bracket.start())
            depth += 1 if bracket[0] in _OPENING else -1
            place = bracket.end()
        if depth == 1:
            names += outside.count(b":", place)
        start = end
        give_way()
    return names


def begins_object(data: bytes) -> bool:
    """Tell whether this is a JSON object, if it is JSON at all."""
    return _OBJECT.match(data) is not None


def outer_text(data: bytes, name: str, *, most: int, chunk: int = 1 << 16) -> str | None:
    """Return the text that a JSON object has under `name`, or None if there is none. The first one counts.

    What stands before it takes as long as `json_shape`, and others get their turns as often. Nothing but that text is
    decoded. Raises `PayloadTooLarge` if more than `most` objects within it have the name, too.
    """
    begin = _OBJECT.match(data)
    if begin is None:
        return None
    key = f'"{name}"'.encode()
    place = begin.end() - 1
    depth = chunks = 0
    in_string = False
    for number, found in enumerate(_places(data, key), 1):
        if number > most:
            raise PayloadTooLarge(
                f"the request body has more than {most} JSON objects with the field {name} (option.max_json_containers)",
                code="too_many_values",
            )
        if not number % _NAMES_A_TURN:
            give_way()
        if data[found - 1 : found] == b"\\":  # before a name, there is no backslash
            continue
        while place < found:
            end = found if found - place <= chunk else _chunk_end(data, place, chunk)
            outside, in_string = _outside_strings(data[place:end], in_string)
            depth += sum(map(outside.count, _OPENING)) - sum(map(outside.count, _CLOSING))
            place = end
            if place < found and not (chunks := chunks + 1) % _CHUNKS_A_TURN:
                give_way()
        if depth == 1 and not in_string and (match := _TEXT_MEMBER.match(data, found + len(key))):
            return _text(match[1])
    return None


def count_members(value: object) -> int:
    """Return the total number of members of all objects in a decoded value."""
    members = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            members += len(item)
            waiting += [part for part in item.values() if isinstance(part, (dict, list))]
        elif isinstance(item, list):
            waiting += [part for part in item if isinstance(part, (dict, list))]
    return members


def _outside_strings(piece: bytes, in_string: bool) -> tuple[bytes, bool]:
    """Return what of a piece is outside of strings, and whether it ends within one. It must not split an escape sequence."""
    if in_string and b'"' not in piece:  # most of an image, or of a long text
        return b"", True
    # Once escaped backslashes and quotes are removed, every remaining quote starts or ends a string.
    parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
    return b"".join(parts[1 if in_string else 0 :: 2]), in_string ^ (len(parts) % 2 == 0)


def _places(data: bytes, key: bytes) -> Iterator[int]:
    for start in range(0, len(data), _SEARCHED):
        if start:
            give_way()
        end = start + _SEARCHED + len(key) - 1
        place = data.find(key, start, end)
        while place != -1:
            yield place
            place = data.find(key, place + 1, end)


def _text(literal: bytes) -> str | None:
    try:
        return msgspec.json.decode(literal, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _chunk_end(data: bytes, start: int, chunk: int) -> int:
    """Return where a chunk that begins at `start` can end without splitting an escape sequence."""
    end = start + chunk
    if end >= len(data):
        return len(data)
    backslashes = chunk - len(data[start:end].rstrip(b"\\"))
    return end - backslashes % 2


_CHUNKS_A_TURN = 4
_NAMES_A_TURN = 256
_SEARCHED = 1 << 18
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")
_OBJECT = re.compile(rb"[ \t\r\n]*\{")
_TEXT_MEMBER = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*("(?:[^"\\]|\\.){0,8192}")')
_BRACKET = re.compile(rb"[\[\]{}]")
_NOT_STRUCTURAL = bytes(byte for byte in range(256) if byte not in b"[{:,")
_NOT_NESTING = bytes(byte for byte in range(256) if byte not in b"[]{}:")
