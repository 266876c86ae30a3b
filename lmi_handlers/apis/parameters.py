"""The translation of an API's body to `SamplingParams`, declared in the body's struct.

A field with the name of a field of `SamplingParams` sets it. `Param` marks fields with other names or values, `Affects`
those that the API evaluates itself. A list or a single text becomes a tuple where `SamplingParams` has one. In a body:

    top_k: int | None = None
    max_new_tokens: Annotated[int, Param("max_tokens")] | None = None
    do_sample: Annotated[bool, Affects("temperature")] | None = None

Bodies that are translated to those of another API use the same declarations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec

from lmi_handlers.core.sampling_params import SamplingParams

_Convert = Callable[[Any], object]


class Param(msgspec.Struct, frozen=True):
    """Marks a field that sets the field `name`, by default the one with the same name.

    `convert` makes the value; None means that the field is absent. It may raise `InvalidRequest` for `name`. If several
    fields set `name`, the one declared first takes precedence, except over one that is `first`.
    """

    name: str | None = None
    convert: _Convert | None = None
    first: bool = False


class Affects:
    """Marks a field that the API evaluates itself, to set the fields `names`.

    Errors of these are reported under its name, unless the client has set them under another one.
    """

    def __init__(self, *names: str) -> None:
        self.names = names


def sampling_params(
    body: msgspec.Struct, defaults: Mapping[str, object], computed: Mapping[str, object]
) -> SamplingParams:
    """Translate. `computed` replaces what the fields of `body` say; None means that they say nothing.

    Raises `InvalidRequest` with the name in `SamplingParams`: see `client_field`.
    """
    values = values_of(body, SamplingParams)
    for name, value in computed.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
    return SamplingParams(**{**defaults, **values})


def values_of(body: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of `kind` that `body` sets. Raises `InvalidRequest` with the name in `kind`."""
    values: dict[str, Any] = {}
    for field, name, convert in _setters(type(body), kind):
        value = getattr(body, field)
        if value is None or name in values:
            continue
        if convert is not None:
            value = convert(value)
        if value is not None:
            values[name] = value
    return values


def client_field(body: msgspec.Struct, name: str) -> str:
    """Return the field with which the client set `name`, a field of `SamplingParams`, or could have set it."""
    fields = fields_of(type(body), name)
    unset = name if name in fields else fields[0]
    return next((field for field in fields if getattr(body, field, None) is not None), unset)


def fields_of(body: type[msgspec.Struct], name: str) -> tuple[str, ...]:
    """Return the fields that set or affect `name`, in order of precedence. If there is none, return `name` itself."""
    return _by_name(body).get(name, (name,))


def names_of(body: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the name of what each field sets, but not of what it only affects."""
    return {declared.field: name for declared in _declared(body) if declared.sets for name in declared.names}


def as_tuple(value: str | list[Any]) -> tuple[Any, ...]:
    """Convert a list, or a single text in place of a list."""
    return (value,) if isinstance(value, str) else tuple(value)


class _Declared(NamedTuple):
    field: str
    names: tuple[str, ...]
    sets: bool
    convert: _Convert | None = None
    first: bool = False


@functools.cache
def _declared(body: type[msgspec.Struct]) -> tuple[_Declared, ...]:
    """Return what each field of a body declares, in order of precedence."""
    declared = []
    for field in msgspec.structs.fields(body):
        mark = next(_marks(field.type), Param())
        if isinstance(mark, Affects):
            declared.append(_Declared(field.name, mark.names, sets=False))
        else:
            names = (mark.name or field.name,)
            declared.append(_Declared(field.name, names, sets=True, convert=mark.convert, first=mark.first))
    return tuple(sorted(declared, key=lambda declared: (not declared.first, not declared.sets)))


@functools.cache
def _by_name(body: type[msgspec.Struct]) -> Mapping[str, tuple[str, ...]]:
    fields: dict[str, tuple[str, ...]] = {}
    for declared in _declared(body):
        for name in declared.names:
            fields[name] = (*fields.get(name, ()), declared.field)
    return fields


def _marks(kind: Any) -> Iterator[Param | Affects]:
    """Yield the marks of a type and, if it is a union, of its members."""
    if get_origin(kind) is Annotated:
        yield from (mark for mark in kind.__metadata__ if isinstance(mark, Param | Affects))
        kind = kind.__origin__
    if get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _marks(member)


@functools.cache
def _setters(body: type[msgspec.Struct], kind: type[msgspec.Struct]) -> Sequence[tuple[str, str, _Convert | None]]:
    """Return `(field, name, convert)` for each field of `body` that sets a field of `kind`, whose name is `name`."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return [
        (declared.field, name, declared.convert or (as_tuple if _takes_tuple(types[name]) else None))
        for declared in _declared(body)
        for name in declared.names
        if declared.sets and name in types
    ]


def _takes_tuple(kind: Any) -> bool:
    return any(get_origin(part) is tuple for part in (kind, *get_args(kind)))
