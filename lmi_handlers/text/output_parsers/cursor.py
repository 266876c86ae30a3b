"""Reads text that is still being generated.

A parser is a generator that is suspended until it has the text it needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

Reading = Generator[None, None, T]
"""A reading step, to be used with `yield from`. Each `yield` waits for more text. It returns the text that was read."""

SPACE = re.compile(r"\s+")


class Malformed(Exception):
    """The text does not continue as the parser expects."""


class Cursor:
    """A position in a text that grows at its end. Text is discarded once read, so time and memory are linear.

    What a method returns does not depend on how the text was split into pieces. The exceptions are `take` and
    `take_available`, which do not wait. Between `hold` and `release` the cursor remembers what is read.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._held: list[str] | None = None

    def append(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        self._ended = True

    def peek(self) -> Reading[str]:
        """Return the next character without reading it, or "" at the end of the text."""
        return (yield from self.ahead(1))

    def ahead(self, count: int) -> Reading[str]:
        """Return the next `count` characters without reading them. Returns fewer only at the end of the text."""
        while len(self._text) - self._at < count and not self._ended:
            yield
        return self._text[self._at : self._at + count]

    def starts_with(self, literal: str) -> Reading[bool]:
        """Return whether the text continues with `literal`. Waits only while that is undecided."""
        while literal.startswith(self._text[self._at : self._at + len(literal)]) and not self._ended:
            if len(self._text) - self._at >= len(literal):
                return True
            yield
        return self._text.startswith(literal, self._at)

    def take(self, count: int) -> str:
        """Read up to `count` characters that are already there."""
        piece = self._text[self._at : self._at + count]
        self._at += len(piece)
        if self._held is not None:
            self._held.append(piece)
        return piece

    def take_available(self, characters: re.Pattern[str]) -> str:
        """Read the characters that match and are already there. `characters` is a repeated character class."""
        match = characters.match(self._text, self._at)
        return self.take(match.end() - self._at) if match else ""

    def take_while(self, characters: re.Pattern[str]) -> Reading[str]:
        """Read all characters that match, waiting for the first that does not. `characters` as for `take_available`."""
        pieces = []
        while (yield from self.peek()) and (piece := self.take_available(characters)):
            pieces.append(piece)
        return "".join(pieces)

    def accept(self, literal: str) -> Reading[bool]:
        """Read `literal` if the text continues with it, and return whether it does."""
        found = yield from self.starts_with(literal)
        if found:
            self.take(len(literal))
        return found

    def accept_any(self, literals: Iterable[str]) -> Reading[str]:
        """Read and return the first of `literals` that the text continues with, or return "" if there is none."""
        for literal in literals:
            if (yield from self.accept(literal)):
                return literal
        return ""

    def expect(self, literal: str) -> Reading[None]:
        """Read `literal`. Raises `Malformed` if the text does not continue with it."""
        if not (yield from self.accept(literal)):
            raise Malformed

    def hold(self) -> None:
        """Start to remember what is read."""
        self._held = []

    def release(self) -> str:
        """Stop holding and return what has been read since `hold`, or "" if nothing was held."""
        held, self._held = self._held, None
        return "".join(held or ())


def start_of_a_mark(text: str, marks: Collection[str]) -> int:
    """Return how many characters at the end may be the start of one of `marks`, all of which begin with `<`."""
    at = text.rfind("<", -max(map(len, marks)))
    tail = text[at:] if at >= 0 else ""
    return len(tail) if tail and any(mark.startswith(tail) and mark != tail for mark in marks) else 0
