"""Reading text that is still being written: a parser is a generator, suspended while the text it needs is not there."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

Reading = Generator[None, None, T]
"""A step of reading, for `yield from`: each `yield` waits for more text, and the value is what has been read."""

SPACE = re.compile(r"\s+")


class Malformed(Exception):
    """The text does not go on as the one who reads it needs."""


class Cursor:
    """A place in a text that grows at its end. What has been read is forgotten, so time and memory are linear.

    Whatever a method returns depends on the text alone, not on how it was cut into pieces; `take` and `available` are
    the exceptions, as they do not wait. Characters that are read while text is held can be had back from `release`.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._held: list[str] | None = None

    def append(self, text: str) -> None:
        """Add text at the end."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Say that there is no more text to come."""
        self._ended = True

    def peek(self) -> Reading[str]:
        """Return the next character without reading it, "" at the end of the text."""
        return (yield from self.ahead(1))

    def ahead(self, count: int) -> Reading[str]:
        """Return the next `count` characters without reading them, fewer at the end of the text only."""
        while len(self._text) - self._at < count and not self._ended:
            yield
        return self._text[self._at : self._at + count]

    def starts_with(self, literal: str) -> Reading[bool]:
        """Whether the text goes on with `literal`. Waits only while it may."""
        while literal.startswith(self._text[self._at : self._at + len(literal)]) and not self._ended:
            if len(self._text) - self._at >= len(literal):
                return True
            yield
        return self._text.startswith(literal, self._at)

    def take(self, count: int) -> str:
        """Read the next `count` characters of those that are there."""
        piece = self._text[self._at : self._at + count]
        self._at += len(piece)
        if self._held is not None:
            self._held.append(piece)
        return piece

    def available(self, run: re.Pattern[str]) -> str:
        """Read what is there of a match of `run`, which is a repeated class of characters; "" where none is there."""
        match = run.match(self._text, self._at)
        return self.take(match.end() - self._at) if match else ""

    def run(self, run: re.Pattern[str]) -> Reading[str]:
        """Read a whole match of `run`, which is a repeated class of characters; "" where the text does not match."""
        pieces = []
        while (yield from self.peek()) and (piece := self.available(run)):
            pieces.append(piece)
        return "".join(pieces)

    def accept(self, literal: str) -> Reading[bool]:
        """Read `literal` if the text goes on with it, and return whether it does."""
        found = yield from self.starts_with(literal)
        if found:
            self.take(len(literal))
        return found

    def accept_any(self, literals: Iterable[str]) -> Reading[str]:
        """Read the first of `literals` that the text goes on with, and return it; "" where it goes on with none."""
        for literal in literals:
            if (yield from self.accept(literal)):
                return literal
        return ""

    def expect(self, literal: str) -> Reading[None]:
        """Read `literal`. Raises `Malformed` where the text does not go on with it."""
        if not (yield from self.accept(literal)):
            raise Malformed

    def hold(self) -> None:
        """Remember what is read from here on."""
        self._held = []

    def release(self) -> str:
        """Return what has been read since `hold`, "" where nothing is held, and hold no more."""
        held, self._held = self._held, None
        return "".join(held or ())
