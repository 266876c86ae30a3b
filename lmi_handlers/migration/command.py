"""The command that starts another server, as people have it in a script: alone, in a wrapper or after `docker run`."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import REDACTED, is_secret, redacted
from lmi_handlers.migration.container import CONTAINERS, Container, read_container
from lmi_handlers.migration.shell import ShellReader

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NUMBER = re.compile(r"-\d")
_NAME = re.compile(r"[\w-]+")
_SECRET_WORD = re.compile(
    r"(?:Authorization|x-api-key|api-key)\s*:|Bearer\s|\b(?:hf_|sk-|AKIA|ASIA|gh[pousr]_)\w", re.IGNORECASE
)
"""Headers with keys, and how keys of well-known services begin."""

_PYTHON = re.compile(r"python[\d.]*")
_DEPTH = 3
"""Commands in quotes, such as `bash -c "..."`, may be nested this deep."""

MANY = -1
"""The number of values of a flag that takes every word up to the next flag."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed command: the environment variables that it sets, and the words after the name of the program.

    `container` is what `docker run` says, if it is part of the command. `remarks` are sentences about the rest.
    """

    environ: Mapping[str, str]
    words: Sequence[str]
    container: Container | None = None
    remarks: Sequence[str] = ()


def read_command(
    text: str, programs: Sequence[Sequence[str]], images: Sequence[str], environ: Mapping[str, str]
) -> Command:
    """Find the first command of one of these `programs` (each the words of its name) in a script for a shell.

    In `docker run`, one of `images` is part of the image's name. Flags alone are read as if the program stood before them.
    `environ` has the variables that the shell would know. Raises `ConfigError` if there is no such command.
    """
    reader = _Script(programs, images)
    found = reader.find(text, dict(environ), {}, _DEPTH)
    if found is None:
        raise ConfigError(f"there is no command {shlex.join(programs[0])!r} in {text.strip()[:80]!r}")
    return found


class _Script:
    """Looks for one of the programs, in commands and in what wrappers start."""

    def __init__(self, programs: Sequence[Sequence[str]], images: Sequence[str]) -> None:
        self._programs = programs
        self._images = images

    def find(self, text: str, variables: dict[str, str], exported: dict[str, str], depth: int) -> Command | None:
        """Return the first command of the program in `text`. `variables` are known, `exported` reach the program."""
        shell = ShellReader(text, variables)
        others: list[Sequence[str]] = []
        for words in shell.commands():
            if _assigns(words, variables, exported):
                continue
            found = self._read(words, exported) or self._within(words, variables, exported, depth)
            if found is None and words[0].startswith("-") and not others:
                found = Command(environ=exported, words=words)
            if found is not None:
                remarks = [*_of_unknown(shell.unknown), *_of_others(others), *found.remarks]
                return msgspec.structs.replace(found, remarks=remarks)
            others.append(words)
        return None

    def _read(self, words: list[str], exported: Mapping[str, str]) -> Command | None:
        container = next(
            (i for i, word in enumerate(words[:-1]) if _is(word, CONTAINERS) and words[i + 1] == "run"), None
        )
        if container is not None:
            return self._in_container(words, container, exported)
        first, end = self._start(words)
        if end == 0:
            return None
        environ, remarks = _of_wrappers(words[:first])
        return Command(environ={**exported, **environ}, words=words[end:], remarks=remarks)

    def _in_container(self, words: Sequence[str], start: int, exported: Mapping[str, str]) -> Command:
        environ, remarks = _of_wrappers(words[:start])
        found, inside = read_container(words[start + 2 :], self._images, {**exported, **environ})
        variables = {name: found.outside(value) for name, value in found.environ.items()}
        end = self._start(inside)[1]
        command = self._within(inside, {}, variables, _DEPTH) if end == 0 else None
        command = command or Command(environ=variables, words=inside[end:])
        translated = [*map(found.outside, command.words)]
        used = " ".join(set(translated) - set(command.words)) + " ".join(variables.values())
        unused = [written for folder, written in found.mounts.values() if folder not in used]
        return msgspec.structs.replace(
            command,
            words=translated,
            container=msgspec.structs.replace(found, others=[*found.others, *unused]),
            remarks=[*remarks, *command.remarks],
        )

    def _within(
        self, words: Sequence[str], variables: Mapping[str, str], exported: Mapping[str, str], depth: int
    ) -> Command | None:
        """Return the command in a word of its own, as in `bash -c "..."`."""
        for index, word in enumerate(words if depth else ()):
            if " " in word and not word.startswith("-"):
                environ, _ = _of_wrappers(words[:index])
                found = self.find(word, dict(variables), {**exported, **environ}, depth - 1)
                if found is not None:
                    return found
        return None

    def _start(self, words: Sequence[str]) -> tuple[int, int]:
        """Return where the program's name begins and ends in `words`, or 0 and 0."""
        for first, program in itertools.product(range(len(words)), self._programs):
            end = first + len(program)
            if _is(words[first], (program[0],)) and [*words[first + 1 : end]] == [*program[1:]]:
                return first, end
        return 0, 0


def _is(word: str, names: Sequence[str]) -> bool:
    return word.rpartition("/")[2] in names


def _assigns(words: Sequence[str], variables: dict[str, str], exported: dict[str, str]) -> bool:
    """Carry out a command that only sets variables. Returns whether it is one."""
    exports = words[0] == "export"
    if not exports and not all(map(_ASSIGNMENT.match, words)):
        return False
    for word in words[exports:]:
        name, is_set, value = word.partition("=")
        if is_set:
            variables[name] = value
        if exports and name in variables:
            exported[name] = variables[name]
    return True


def _of_wrappers(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that are set in front of a program, and a remark about what else stands there."""
    assignments = [word for word in words if _ASSIGNMENT.match(word)]
    environ = {name: value for name, _, value in (word.partition("=") for word in assignments)}
    others = [word for word in words if word not in assignments and word not in ("env", "exec")]
    others = [*itertools.takewhile(lambda word: not _PYTHON.fullmatch(word.rpartition("/")[2]), others)]
    return environ, [f"{_shown(others)}: put what still applies before lmi serve"] if others else []


def _of_unknown(names: Mapping[str, None]) -> Iterator[str]:
    if names:
        yield f"{', '.join(names)}: the value is not known here; write it in place of the name"


def _of_others(commands: Sequence[Sequence[str]]) -> Iterator[str]:
    if commands:
        yield f"{'; '.join(map(_shown, commands))}: not part of the command"


def _shown(words: Sequence[str]) -> str:
    """Return words of a script for a comment in a file that people keep and share, without what may be a secret."""
    return " ".join(_shown_word(last, word) for last, word in itertools.pairwise(("", *words)))


def _shown_word(last: str, word: str) -> str:
    """Hide a word behind an option or a command that is named like a secret, a header, and what begins like a key."""
    if (shown := redacted(word)) != word:
        return shown
    is_named = _NAME.fullmatch(last) is not None and is_secret(last, word) and not word.startswith("-")
    return REDACTED if is_named or _SECRET_WORD.search(word) else shlex.quote(word)


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
