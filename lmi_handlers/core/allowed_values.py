"""Finds what a type allows at a place in JSON, for errors about another value."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_MOST = 30
"""A longer list would hide the cause."""

RULE = "rule"
"""In the `extra` of a `msgspec.Meta` with a pattern: what it allows, in words."""

_STEP = re.compile(r"\.(\w+)|\[(?:\d+|\.\.\.)\]")

_type_info = functools.cache(inspect.type_info)  # a few milliseconds for a large body


def allowed_values(kind: Any, path: str) -> list[str]:
    """Return the values of an enumeration, or of a union's tag, at a path such as `.messages[0].role` in a `kind`.

    Returns an empty list if there are none, or too many for a message.
    """
    values = dict.fromkeys(str(value) for each in _types_at(kind, path) for value in _values(each))
    return [*values] if len(values) <= _MOST else []


def rule(kind: Any, path: str) -> str | None:
    """Return what the pattern of a text at a path allows, or None if its type does not say so in words."""
    found = (each.extra for each in _types_at(kind, path) if isinstance(each, inspect.Metadata) and each.extra)
    return next((str(extra[RULE]) for extra in found if RULE in extra), None)


def _types_at(kind: Any, path: str) -> list[inspect.Type]:
    found = [*_members(_type_info(kind))]
    for step in _STEP.finditer(path):
        inner = (member for each in found for kind in _inner(each, step[1]) for member in _members(kind))
        found = [*{id(member): member for member in inner}.values()]  # once each, however deep a recursive type goes
    return found


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield kind
        yield from _members(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _members(each)
    else:
        yield kind


def _inner(kind: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yield the types of a struct's field or, if that is None, of the items of a list or of an object."""
    if isinstance(kind, inspect.StructType) and field is not None:
        if field == kind.tag_field:
            yield inspect.LiteralType((kind.tag,))
        yield from (each.type for each in kind.fields if each.encode_name == field)
    elif isinstance(kind, inspect.CollectionType) and field is None:
        yield kind.item_type
    elif isinstance(kind, inspect.TupleType) and field is None:
        yield from kind.item_types
    elif isinstance(kind, inspect.DictType) and field is None:
        yield kind.value_type


def _values(kind: inspect.Type) -> Iterator[object]:
    if isinstance(kind, inspect.LiteralType):
        yield from kind.values
    elif isinstance(kind, inspect.EnumType):
        yield from (member.value for member in kind.cls)
