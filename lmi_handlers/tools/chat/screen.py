"""Prints what others wrote. A model's answer must not move the cursor, change colours or set the terminal's title."""

from __future__ import annotations

import sys

from lmi_handlers.core.terminal import visible, write

_DIM, _RED, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[0m"


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
        write(sys.stderr, self._painted(_RED, f"lmi: error: {line}") + "\n")

    def _painted(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._coloured else text

    @staticmethod
    def _write(text: str) -> None:
        write(sys.stdout, text)
