"""Prints what others wrote. A model's answer must not move the cursor, change colours or set the terminal's title."""

from __future__ import annotations

import sys
import unicodedata
from typing import TextIO

_ALLOWED = "\n\t\u200c\u200d"
"""Line ends, tabs, and the joiners that emoji and some scripts need."""

_DIM, _RED, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[0m"


def visible(text: str) -> str:
    """Escape control and format characters, such as escape sequences and those that reverse the direction of writing."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in _ALLOWED or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return repr(character)[1:-1]


class Screen:
    """Standard output and standard error. `interactive` if people see them: then notes and colours are shown."""

    def __init__(self, *, interactive: bool, coloured: bool) -> None:
        self.interactive = interactive
        self._coloured = coloured
        self._at_line_start = True
        self._reasons = False

    def reasoning(self, text: str) -> None:
        """Print a piece of the reasoning before an answer. Scripts get the answer only."""
        if self.interactive and text:
            if not self._reasons:
                self.note("[reasoning]")
            self._reasons = True
            self._write(self._painted(_DIM, visible(text)))
            self._at_line_start = text.endswith("\n")

    def answer(self, text: str) -> None:
        """Print a piece of an answer."""
        if text:
            if self._reasons:
                self.end_line()
                self.note("[answer]")
            self._write(visible(text))
            self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line, unless the last one has ended."""
        if not self._at_line_start:
            self._write("\n")
        self._at_line_start = True
        self._reasons = False

    def note(self, text: str) -> None:
        """Print a line about the chat itself."""
        if self.interactive:
            self._write(self._painted(_DIM, visible(text)) + "\n")

    def error(self, text: str) -> None:
        """Print an error in one line, on standard error."""
        self.end_line()
        line = visible(" ".join(text.split()))
        _write(sys.stderr, self._painted(_RED, f"lmi: error: {line}") + "\n")

    def _painted(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._coloured else text

    @staticmethod
    def _write(text: str) -> None:
        _write(sys.stdout, text)


def _write(stream: TextIO, text: str) -> None:
    """Write at once. What the terminal's encoding does not have, such as Chinese in Windows-1252, is escaped."""
    stream.buffer.write(text.encode(stream.encoding, errors="backslashreplace"))
    stream.buffer.flush()
