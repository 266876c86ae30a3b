"""The one way from here to a terminal. What others wrote must not move its cursor, or write to somebody's clipboard.

Answers of models and servers, names of objects, options and lines of logs are such text. Where standard output is a
file or a pipe, it gets the text as it is.
"""

from __future__ import annotations

import codecs
import sys
import unicodedata
from typing import TextIO

_ALLOWED = "\n\t\u200c\u200d"
"""Line ends, tabs, and the joiners that emoji and some scripts need."""


def visible(text: str) -> str:
    """Escape control and format characters, such as escape sequences and those that reverse the direction of writing."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in _ALLOWED or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return repr(character)[1:-1]


def show(text: str = "", *, end: str = "\n") -> None:
    """Write a text to standard output."""
    write(sys.stdout, (visible(text) if sys.stdout.isatty() else text) + end)


def show_error(text: str, *, end: str = "\n") -> None:
    """Write a text to standard error, where people read it, also later in a file."""
    write(sys.stderr, visible(text) + end)


def write(stream: TextIO, text: str) -> None:
    """Write at once. What the stream's encoding does not have, such as Chinese in Windows-1252, is escaped."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    stream.flush()


class ByteWriter:
    """Writes the bytes of an answer to standard output: as they are to a file or a pipe, as text to a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if sys.stdout.isatty() else None

    def write(self, data: bytes) -> None:
        """Write a part at once. A character may be in two parts."""
        if self._decoder is not None:
            show(self._decoder.decode(data), end="")
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
