"""The command that starts another server, as people have it in a script: alone, or after `docker run`."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from lmi_handlers.core.errors import ConfigError

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NUMBER = re.compile(r"-\d")
_CONTAINERS = ("docker", "podman", "nerdctl")
_LETTERS = "ditPq"
_SWITCHES = (
    *("--rm", "--rmi", "--detach", "--interactive", "--tty", "--privileged", "--init", "--read-only", "--quiet"),
    *("--publish-all", "--sig-proxy", "--no-healthcheck", "--oom-kill-disable", "--disable-content-trust", "--replace"),
)
"""Options of `docker run` without a value. `_LETTERS` are the short ones."""

_OPERATORS = "();<>|&"

MANY = -1
"""The number of values of a flag that takes every word up to the next flag."""


class Command(msgspec.Struct, frozen=True):
    """The environment variables that the command sets, and the words after the name of the program."""

    environ: Mapping[str, str]
    words: Sequence[str]


def read_command(text: str, program: Sequence[str], image: str) -> Command:
    """Read a command of `program` (its words) in a shell's syntax. In `docker run`, `image` is part of the image's name.

    It ends where the shell's next one begins. Raises `ConfigError` if it is another command.
    """
    words = _words(text.replace("\\\n", " "))
    environ = {}
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("env", "exec", "sudo")):
        name, is_set, value = words.pop(0).partition("=")
        if is_set:
            environ[name] = value
    if words and words[0].rpartition("/")[2] in _CONTAINERS:
        pairs = enumerate(itertools.pairwise(words), start=1)
        found = next(
            (i for i, (last, word) in pairs if image in word and not word.startswith("-") and not _wants_value(last)),
            None,
        )
        if found is None:
            raise ConfigError(f"the command starts a container, but names no image with {image!r} in its name")
        environ |= _container_environ(words[:found])
        words = words[found + 1 :]
        if words[:1] == [program[0]]:  # given as the entry point again
            words = words[len(program) :]
        return Command(environ, words)
    names = [words[0].rpartition("/")[2], *words[1 : len(program)]] if words else []
    if names != [*program]:
        raise ConfigError(f"the command does not begin with {shlex.join(program)!r}: {text.strip()[:80]!r}")
    return Command(environ, words[len(program) :])


def _words(text: str) -> list[str]:
    """Return the words of the first command in `text`, up to an operator such as `|`, `&&` or `2>`."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word and not word.strip(_OPERATORS):
                if words and re.search(rf"\s[0-9]{re.escape(word)}", text) and re.fullmatch("[0-9]", words[-1]):
                    words.pop()  # it is the number of the stream that is redirected
                break
            words.append(word)
    except ValueError as error:
        raise ConfigError(f"the command is not valid in a shell: {error}") from error
    return words


def _wants_value(option: str) -> bool:
    """Tell whether the word after a word of `docker run` is its value."""
    if option.startswith("--"):
        return "=" not in option and option not in _SWITCHES
    return option.startswith("-") and len(option[1:].lstrip(_LETTERS)) == 1


def _container_environ(words: Sequence[str]) -> dict[str, str]:
    """Return what `-e NAME=value` sets. A name alone is passed on from outside, and is not known here."""
    environ = {}
    for flag, word in itertools.pairwise(("", *words)):
        given = word if flag in ("-e", "--env") else word.removeprefix("--env=") if word.startswith("--env=") else ""
        name, is_set, value = given.partition("=")
        if is_set:
            environ[name] = value
    return environ


def read_flags(
    words: Sequence[str], number_of_values: Callable[[str], int], aliases: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag without its dashes, with its values. A word that belongs to no flag comes with the flag "".

    A flag is spelled with dashes, whatever was typed, up to its first dot. `aliases` has the names of short flags, with
    their dash. Raises `ConfigError` if a value is missing.
    """
    rest = [*words]
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            yield "", [word]
            continue
        name, has_value, value = word.partition("=")
        head, dot, path = name.partition(".")
        head = aliases.get(head, head).lstrip("-")
        flag = head.replace("_", "-") + dot + path
        values = [value] if has_value else []
        wanted = number_of_values(flag)
        while not has_value and rest and not _is_flag(rest[0]) and (wanted == MANY or len(values) < wanted):
            values.append(rest.pop(0))
        if wanted != 0 and not values:
            raise ConfigError(f"{word} has no value")
        yield flag, values


def _is_flag(word: str) -> bool:
    """Tell a flag from a value, which may be a negative number."""
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)
