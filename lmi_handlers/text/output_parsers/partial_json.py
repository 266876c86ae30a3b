"""Reads JSON that is still being generated, one object member at a time. Checks the structure, but not the values.

Written by hand, because clients get the text of a value as the model wrote it, piece by piece. ijson returns a string
only when it is complete. jiter and partial-json-parser return decoded values, and read all of the text again for each
piece: for an argument of 200,000 characters that takes more than 15 s, here 0.2 s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from lmi_handlers.text.output_parsers.cursor import SPACE, Cursor, Malformed, Reading

Write = Callable[[str], None]
"""Receives the pieces of a value in order."""


def read_key(text: Cursor, *, first: bool) -> Reading[str | None]:
    """Read up to the value of an object's next member and return its key. At the end, read the brace and return None.

    For the `first` member the cursor must be after the opening brace, later at the end of the previous value. Raises
    `Malformed` if the text is not an object.
    """
    yield from text.take_while(SPACE)
    if not first and not (yield from text.starts_with("}")):
        yield from text.expect(",")
        yield from text.take_while(SPACE)
    if (yield from text.accept("}")):
        return None
    key = yield from read_string(text)
    yield from text.take_while(SPACE)
    yield from text.expect(":")
    yield from text.take_while(SPACE)
    return key


def copy_value(text: Cursor, write: Write) -> Reading[None]:
    """Read a value of any type and write its text unchanged.

    Raises `Malformed` at a character that cannot occur in JSON, such as the `<` of an end tag after a missing brace.
    """
    depth = 0
    while True:
        char = yield from text.peek()
        if char == '"':
            yield from _copy_string(text, write)
        elif char and char in "{[":
            depth += 1
            write(text.take(1))
        elif char and char in "}]" and depth:
            depth -= 1
            write(text.take(1))
        elif depth and (piece := text.take_available(_BETWEEN)):
            write(piece)
        elif not depth and (scalar := (yield from text.take_while(_SCALAR))):
            write(scalar)
        else:
            raise Malformed
        if not depth:
            return


def read_string(text: Cursor) -> Reading[str]:
    """Read a string and return it decoded. Raises `Malformed` as `decode_string` does."""
    pieces: list[str] = []
    yield from decode_string(text, pieces.append)
    return "".join(pieces)


def decode_string(text: Cursor, write: Write) -> Reading[None]:
    """Read a string and write it decoded. Line breaks and unknown escapes are kept unchanged.

    Half a surrogate pair becomes U+FFFD. Raises `Malformed` if the text is not a string or ends inside it.
    """
    yield from text.expect('"')
    while not (yield from text.accept('"')):
        if not (yield from text.peek()):
            raise Malformed
        if piece := text.take_available(_PLAIN):
            write(piece)
        else:
            write((yield from _read_escape(text)))


def json_string(text: str) -> str:
    """Return `text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def string_content(text: str) -> str:
    """Return `text` as a JSON string without its quotes."""
    return json_string(text)[1:-1]


_SCALAR = re.compile(r"[-+.\w]+")
_BETWEEN = re.compile(r"[-+.\w\s,:]+")  # everything in arrays and objects except strings and brackets
_PLAIN = re.compile(r'[^"\\]+')


def _copy_string(text: Cursor, write: Write) -> Reading[None]:
    write(text.take(1))
    while (char := (yield from text.peek())) != '"':
        if not char:
            raise Malformed
        write(text.take_available(_PLAIN) or (yield from _copy_escape(text)))
    write(text.take(1))


def _copy_escape(text: Cursor) -> Reading[str]:
    yield from text.ahead(2)
    return text.take(2)


def _read_escape(text: Cursor) -> Reading[str]:
    escape = yield from text.ahead(6 if (yield from text.starts_with("\\u")) else 2)
    if not _CODE_UNIT.fullmatch(escape):
        escape = text.take(2)
        return _ESCAPES.get(escape, escape)
    unit = _code_unit(text.take(6))
    if "\ud800" <= unit < "\udc00" and (yield from text.starts_with("\\u")):
        escape = yield from text.ahead(6)
        if _LOW_SURROGATE.fullmatch(escape):
            return (unit + _code_unit(text.take(6))).encode("utf-16", "surrogatepass").decode("utf-16")
    return "\ufffd" if "\ud800" <= unit < "\ue000" else unit


def _code_unit(escape: str) -> str:
    return chr(int(escape[2:], 16))


_CODE_UNIT = re.compile(r"\\u[0-9a-fA-F]{4}")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPES = {
    '\\"': '"',
    "\\\\": "\\",
    "\\/": "/",
    "\\b": "\b",
    "\\f": "\f",
    "\\n": "\n",
    "\\r": "\r",
    "\\t": "\t",
}
