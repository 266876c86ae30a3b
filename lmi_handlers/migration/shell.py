"""Reads the commands of a POSIX shell as the shell would: words, quotes, variables, comments, redirections.

Nothing is run. What only a shell can find out, such as `$(hostname)`, stays as it is written.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping

from lmi_handlers.core.errors import ConfigError

_TOKEN = re.compile(
    r"""
    (?P<continued>\\\r?\n)
    | (?P<newline>\n)
    | (?P<blank>[ \t\r]+)
    | (?P<operator>[;&|<>()]+)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:\\.|[^"\\])*)"
    | (?P<expansion>\$\([^()]*\) | `[^`]*` | \$\{[^}]*\} | \$[A-Za-z_]\w* | \$[@*\#?0-9])
    | \\(?P<escaped>.)
    | (?P<plain>[^\s'"\\$`;&|<>()]+ | \$)
    """,
    re.VERBOSE | re.DOTALL,
)
_EXPANSION = re.compile(r"\$\([^()]*\)|`[^`]*`|\$\{[^}]*\}|\$[A-Za-z_]\w*|\$[@*#?0-9]|\\(?:\r?\n|[$`\"\\])", re.DOTALL)
_PARAMETER = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=](.*))?\}|([A-Za-z_]\w*))", re.DOTALL)
_WORKING_DIRECTORY = ("$(pwd)", "`pwd`")
_CONTINUES = re.compile(r"[ \t]*(?:\r?\n[ \t]*)*(?:[ \t-]|['\"{\[]|\Z)")
"""The text after a line break within a command that was typed without backslashes: an indented line, a flag or a value."""


class ShellReader:
    """Reads `text` with these `variables`, which may change while it is read. `unknown` is what could not be expanded."""

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self._text = textwrap.dedent(text)
        self._variables = variables
        self.unknown: dict[str, None] = {}

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of each command, without redirections. Raises `ConfigError` for a quote that is not closed."""
        words: list[str] = []
        word: str | None = None
        is_target = False  # the next word is where a stream is redirected to
        position = 0
        while position < len(self._text):
            if word is None and self._text[position] == "#":
                end = self._text.find("\n", position)
                position = len(self._text) if end < 0 else end
                continue
            found = _TOKEN.match(self._text, position)
            if found is None:
                raise ConfigError(f"the command is not valid in a shell: {self._text[position]} is not closed")
            position, kind, text = found.end(), str(found.lastgroup), found[str(found.lastgroup)]
            if kind in ("single", "double", "expansion", "escaped", "plain"):
                before, *more = self._pieces(kind, text)
                word = (word or "") + before
                for piece in more:
                    words.append(word)
                    word = piece
                continue
            if kind == "continued":
                continue
            if kind == "operator" and re.search("[<>]", text) and word is not None and word.isdecimal():
                word = None  # the number of the stream
            if word is not None and not is_target:
                words.append(word)
            is_target = is_target and word is None
            word = None
            if kind == "operator" and re.search("[<>]", text):
                is_target = True
            elif kind == "operator" or (kind == "newline" and not _CONTINUES.match(self._text, position)):
                if words:
                    yield words
                words, is_target = [], False
        if word is not None and not is_target:
            words.append(word)
        if words:
            yield words

    def _pieces(self, kind: str, text: str) -> list[str]:
        """Return what a part of a word stands for: several words if it is a variable outside quotes that holds several."""
        if kind == "double":
            return [_EXPANSION.sub(lambda found: self._expanded(found[0]), text)]
        if kind != "expansion":
            return [text]
        value = self._expanded(text)
        return value.split() or [""] if value != text else [value]

    def _expanded(self, text: str) -> str:
        if text.startswith("\\"):
            return text[1:].strip("\r\n")
        name, default = text, None
        if text in _WORKING_DIRECTORY:
            name = "PWD"
        elif (found := _PARAMETER.fullmatch(text)) is not None:
            name, default = found[1] or found[3], found[2]
        value = self._variables.get(name, default)
        if value is None:
            self.unknown[text] = None
            return text
        return value
