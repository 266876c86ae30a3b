"""Compares the form of JSON documents with that of a reference's: fields and types, but not the model's text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

_NAMES_A_KIND = ("error_type", "object", "role", "type")
"""Fields whose value says what an object is, so it belongs to the form."""

_LONGEST_VALUE = 60
_LAST_FIELD = re.compile(r"\w+$")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Exceptions of a vector. Paths are written as `choices[].delta.content`.

    `open` allows fields that the reference does not have. Fields in `optional` may be missing or null, those in `any` may
    have any value, and those in `one_of` must have one of these values.
    """

    open: bool = False
    optional: frozenset[str] = frozenset()
    any: frozenset[str] = frozenset()
    one_of: Mapping[str, Sequence[Any]] = {}


def difference(examples: Sequence[Any], found: Any, rules: Rules, path: str = "") -> str | None:
    """Return the first difference between a value and the form that the reference's values have, None if there is none.

    `examples` has at least one value.
    """
    if path in rules.any or (found is None and path in rules.optional):
        return None
    if (wrong := _wrong_value(examples, found, rules, path)) is not None:
        return wrong
    if isinstance(found, Mapping):
        return _of_fields([value for value in examples if isinstance(value, Mapping)], found, rules, path)
    if isinstance(found, list):
        elements = [element for value in examples if isinstance(value, list) for element in value]
        if not elements:
            return f"{path or 'the array'} is not empty" if found and f"{path}[]" not in rules.any else None
        if not found and [] not in examples:
            return f"{path or 'the array'} is empty"
        return _first(difference(elements, element, rules, f"{path}[]") for element in found)
    return None


def _wrong_value(examples: Sequence[Any], found: Any, rules: Rules, path: str) -> str | None:
    place = path or "the document"
    types = [_type(value) for value in examples]
    if _type(found) not in types and not (_type(found) == "an integer" and "a number" in types):
        return f"{place} is {_shown(found)}, not {_either(types)}"
    allowed: Sequence[Any] | None = rules.one_of.get(path)
    if allowed is None and isinstance(found, str) and _field(path) in _NAMES_A_KIND:
        allowed = examples
    if allowed is not None and found is not None and found not in allowed:
        return f"{place} is {_shown(found)}, not {_either(map(_shown, allowed))}"
    return None


def _of_fields(examples: Sequence[Mapping[str, Any]], found: Mapping[str, Any], rules: Rules, path: str) -> str | None:
    known = dict.fromkeys(name for value in examples for name in value)
    for name in known:
        place = f"{path}.{name}" if path else name
        if name in found:
            values = [value[name] for value in examples if name in value]
            if (inner := difference(values, found[name], rules, place)) is not None:
                return inner
        elif place not in rules.optional | rules.any and all(name in value for value in examples):
            return f"{place} is missing"
    for name in found:
        place = f"{path}.{name}" if path else name
        if name not in known and not rules.open and place not in rules.optional | rules.any:
            return f"{_shown(place)} is not a field of the reference"
    return None


def _first(found: Iterable[str | None]) -> str | None:
    return next((difference for difference in found if difference is not None), None)


def _type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    kinds = {str: "a string", int: "an integer", float: "a number", list: "an array"}
    return kinds.get(type(value), "an object")


def _either(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}.."


def _field(path: str) -> str:
    match = _LAST_FIELD.search(path)
    return match[0] if match else ""
