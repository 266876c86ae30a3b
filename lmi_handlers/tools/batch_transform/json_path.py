"""The part of JSONPath that SageMaker's filters have.

    $                    everything                 .name ['name']     a field
    .* [*]               all values                 ['a','b']          an object of these fields
    [0] [-1]             an element                 [0,2] [1:] [:3]    a list of elements

Hand-written, because a library returns a list of matches, and SageMaker keeps the objects and lists that a path
selects: `$['id','SageMakerOutput']` is an object. Source: "Supported JSONPath operators" in SageMaker's guide to
associating results with input records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

MAX_LENGTH = 63
"""Characters of a filter, as SageMaker limits them."""

_NAME = r"'([^']*)'|\"([^\"]*)\""
_STEP = re.compile(
    rf"""
    \.?\[ \s* (?P<names> (?:{_NAME}) (?:\s*,\s* (?:{_NAME}))* ) \s* \]
    | \.?\[ \s* (?P<numbers> -?\d+ (?:\s*,\s* -?\d+)* ) \s* \]
    | \.?\[ \s* (?P<start> -?\d*) \s* : \s* (?P<end> -?\d*) \s* \]
    | (?P<all> \.\* | \.?\[ \s* \* \s* \])
    | \. (?P<name> [^\s.\[\]'"*?@()$]+)
    """,
    re.VERBOSE,
)

Step = Callable[[Any], Any]


class JsonPath:
    """A path. `select` returns what it selects."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` if the path is not valid or has other operators."""
        if len(text) > MAX_LENGTH:
            raise ValueError(f"a path has at most {MAX_LENGTH} characters, got {len(text)}")
        if not text.startswith("$"):
            raise ValueError(f"{text!r} must begin with $")
        self._steps: list[tuple[Step, bool]] = []
        position = 1
        while position < len(text):
            match = _STEP.match(text, position)
            if match is None:
                raise ValueError(f"{text!r} is not a path that SageMaker supports, from {text[position:]!r} on")
            self._steps.append(_step(match))
            position = match.end()

    @property
    def selects_all(self) -> bool:
        """True if it is just `$`."""
        return not self._steps

    def select(self, value: Any) -> Any:
        """Return what the path selects of a JSON value. Raises `LookupError` if it is not there."""
        each = False
        for step, gives_several in self._steps:
            value = [step(item) for item in value] if each else step(value)
            each = each or gives_several
        return value


def _step(match: re.Match[str]) -> tuple[Step, bool]:
    """Return a step, and whether it gives a list of values, to each of which the next step applies."""
    if match["name"] is not None:
        return _field(match["name"]), False
    if match["names"] is not None:
        names = [first or second for first, second in re.findall(_NAME, match["names"])]
        return (_field(names[0]), False) if len(names) == 1 else (_fields(names), False)
    if match["numbers"] is not None:
        numbers = [int(number) for number in match["numbers"].split(",")]
        if len(numbers) == 1:
            return (lambda value: _list(value)[numbers[0]]), False
        return (lambda value: [_list(value)[number] for number in numbers]), True
    if match["all"] is not None:
        return (lambda value: list(value.values()) if isinstance(value, dict) else list(_list(value))), True
    part = slice(_number(match["start"]), _number(match["end"]))
    return (lambda value: _list(value)[part]), True


def _field(name: str) -> Step:
    return lambda value: _object(value)[name]


def _fields(names: list[str]) -> Step:
    def select(value: Any) -> dict[str, Any]:
        found = dict(_present(_object(value), names))
        if not found:
            raise LookupError(f"none of the fields {', '.join(names)}")
        return found

    return select


def _present(value: dict[str, Any], names: list[str]) -> Iterator[tuple[str, Any]]:
    return ((name, value[name]) for name in names if name in value)


def _number(text: str) -> int | None:
    return int(text) if text else None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LookupError("it is not an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise LookupError("it is not a list")
    return value
