"""Converts Python literals to JSON while they are being generated. Also reads Gemma's, which use tokens as quotes.

Written by hand, because `ast.literal_eval` needs the whole literal, and rejects JSON's constants and the bare words that
models write.
"""

from __future__ import annotations

import json
import re

from lmi_handlers.text.output_parsers.cursor import SPACE, Cursor, Malformed, Reading
from lmi_handlers.text.output_parsers.partial_json import Write, json_string, string_content

JSON_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
"""Python's constants as JSON. JSON's own names are included because models mix them up."""


def read_python_value(text: Cursor, write: Write) -> Reading[None]:
    """Read a literal and write it as JSON. JSON's true, false and null are accepted too. A bare word is a string.

    Raises `Malformed` if the text is not a literal.
    """
    closers: list[str] = []  # the closing brackets of the open JSON brackets
    separator = ""  # only written before the next value, because Python allows a trailing comma
    while True:
        yield from text.take_while(SPACE)
        char = yield from text.peek()
        if char and char in _BRACKETS:
            text.take(1)
            write(separator + _BRACKETS[char][0])
            closers.append(_BRACKETS[char][1])
            separator = ""
            continue
        if char and char in "\"'":
            write(separator)
            yield from _python_string(text, write)
        elif char == "<":
            write(separator)
            yield from _token_string(text, write)
        elif not (closers and char and char in ")]}"):
            word = (yield from text.take_while(_WORD)).strip()
            is_key = closers[-1:] == ["}"] and separator != ": "
            if not word:
                raise Malformed
            write(separator + (json_string(word) if is_key else _literal(word)))
        # A value has been read. A bracket that closes here completes a value too.
        while closers:
            yield from text.take_while(SPACE)
            char = yield from text.peek()
            if not char or char not in ")]}":
                break
            text.take(1)
            write(closers.pop())
        if not closers:
            return
        if char not in _SEPARATORS:
            raise Malformed
        text.take(1)
        separator = _SEPARATORS[char]


def _literal(word: str) -> str:
    return JSON_CONSTANTS.get(word) or (word if _NUMBER.fullmatch(word) else json_string(word))


def _python_string(text: Cursor, write: Write) -> Reading[None]:
    """Read a quoted string and write it as JSON. Unknown escapes are kept unchanged, as in Python."""
    quote = text.take(1)
    write('"')
    while (char := (yield from text.peek())) != quote:
        if not char:
            raise Malformed
        if char != "\\":
            write(string_content(text.take_available(_UNQUOTED) or text.take(1)))
            continue
        kind = yield from text.ahead(2)
        escape = yield from text.ahead(_ESCAPE_LENGTHS.get(kind, 2))
        if _HEX_ESCAPE.fullmatch(escape):
            write(json.dumps(chr(int(text.take(len(escape))[2:], 16)))[1:-1])
        else:
            escape = text.take(2)
            write(_PYTHON_ESCAPES.get(escape) or string_content(escape))
    text.take(1)
    write('"')


def _token_string(text: Cursor, write: Write) -> Reading[None]:
    """Read a string in Gemma's format and write it as JSON. It has no escapes."""
    quote = yield from text.accept_any(_QUOTE_TOKENS)
    if not quote:
        raise Malformed
    write('"')
    while not (yield from text.accept(quote)):
        if not (yield from text.peek()):
            raise Malformed
        write(string_content(text.take_available(_NO_TOKEN) or text.take(1)))
    write('"')


_BRACKETS = {"[": "[]", "(": "[]", "{": "{}"}
_SEPARATORS = {",": ", ", ":": ": "}
_WORD = re.compile(r"""[^][(){},:="'<]+""")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_UNQUOTED = re.compile(r"""[^"'\\]+""")
_QUOTE_TOKENS = ('<|"|>', "<escape>")
_NO_TOKEN = re.compile(r"[^<]+")
_ESCAPE_LENGTHS = {"\\x": 4, "\\u": 6, "\\U": 10}
_HEX_ESCAPE = re.compile(r"\\(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U(000[\da-fA-F]|0010)[\da-fA-F]{4})", re.ASCII)
_PYTHON_ESCAPES = {
    "\\'": "'",
    '\\"': '\\"',
    "\\\\": "\\\\",
    "\\b": "\\b",
    "\\f": "\\f",
    "\\n": "\\n",
    "\\r": "\\r",
    "\\t": "\\t",
}
