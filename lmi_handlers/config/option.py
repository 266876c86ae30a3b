"""Declares an option: a field of a struct, with an `Option` that says how the field is written in serving.properties.

class MyOptions(msgspec.Struct, frozen=True, kw_only=True):
    max_num_blocks: Annotated[PositiveInt | None, Option("Maximum number of cache blocks.")] = None
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]

Value = bool | int | float | str
"""The values of an option, besides None for "not set"."""

M = TypeVar("M")


class InvalidValue(ValueError):
    """The text is not a valid value of the option. The message completes "has value 'x': ..."."""


@dataclass(frozen=True, eq=False)
class Option:
    """The spelling of a field in serving.properties.

    `key` is the name in the file, if it is not `option.<field>`. `aliases` are more names for the same setting.
    `spellings` maps what users write, in lower case, to the value of the field. With `any_case`, the field has any text in
    lower case. `server` is true for options that the HTTP side or the engine loop reads, whatever the backend.
    """

    help: str
    _: KW_ONLY
    server: bool = False
    key: str = ""
    aliases: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    any_case: bool = False
    deprecated: str = ""


class DeclaredField(msgspec.Struct, frozen=True, kw_only=True):
    """A field that text sets. It holds values of `types` within `bounds`, and the words in `choices`."""

    name: str
    type: Any
    types: tuple[type, ...]
    bounds: msgspec.Meta
    choices: tuple[str, ...]
    default: Any

    @property
    def range(self) -> str:
        """The allowed range in words, or "" if there is none."""
        low, above, high = self.bounds.ge, self.bounds.gt, self.bounds.le
        if low is not None and high is not None:
            return f"from {low} to {high}"
        words = (("at least", low), ("above", above), ("at most", high))
        return " and ".join(f"{word} {bound}" for word, bound in words if bound is not None)

    @property
    def allowed(self) -> str:
        """The allowed values in words, such as "an integer of at least 1, or max"."""
        if not self.types:
            return f"one of {', '.join(self.choices)}"
        kinds = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
        words = " or ".join(kinds[kind] for kind in self.types)
        of = " of" if self.range.startswith("at ") else ""
        return ", or ".join([f"{words}{of} {self.range}".rstrip(), *self.choices])

    def parse(self, text: str) -> Any:
        """Return the value that `text` stands for. Raises `InvalidValue`.

        The numbers and booleans are those that LMI reads (+5, .5, yes, on) and that msgspec does not; it would also
        accept nan and null. msgspec checks the result against the field's type.
        """
        try:
            return msgspec.convert(self._read(text), self.type)
        except msgspec.ValidationError as error:
            raise InvalidValue(f"must be {self.allowed}") from error

    def _read(self, text: str) -> Value:
        if bool in self.types:
            return BOOLEANS.get(text.lower(), text)
        if int in self.types and _INTEGER.fullmatch(text):
            return int(text)
        if float in self.types and _DECIMAL.fullmatch(text) and not math.isinf(number := float(text)):
            return number
        return text.lower() if self.choices else text


class DeclaredOption(DeclaredField, frozen=True, kw_only=True):
    """A field with its `Option`. `read_by` has the names of the backends that read it, after "server" if the server does."""

    option: Option
    read_by: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name in serving.properties."""
        return self.option.key or f"option.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """All accepted names, `key` first. `option.<field>` is accepted even where LMI uses no prefix."""
        return tuple(dict.fromkeys((self.key, f"option.{self.name}", *self.option.aliases)))

    def accepts_same(self, other: DeclaredOption) -> bool:
        """Tell whether both are written in the same way. Their defaults and descriptions may differ."""
        return (self.keys, self.type, self.option.spellings) == (other.keys, other.type, other.option.spellings)

    def _read(self, text: str) -> Value:
        word = self.option.spellings.get(text.lower(), text)
        return super()._read(word.lower() if self.option.any_case else word)


@functools.cache
def declared_options(struct: type[msgspec.Struct]) -> Mapping[str, DeclaredOption]:
    """Return field name -> declaration, in the order of the fields. Fields without an `Option` are left out."""
    return MappingProxyType(
        {field["name"]: DeclaredOption(option=option, **field) for option, field in declared_fields(struct, Option)}
    )


def declared_fields(struct: type[msgspec.Struct], metadata: type[M]) -> Iterator[tuple[M, dict[str, Any]]]:
    """Yield the metadata of each field that has some of this type, and the field's part of a `DeclaredField`."""
    hints = get_type_hints(struct, include_extras=True)
    for item in msgspec.structs.fields(struct):
        annotation = hints[item.name]
        found = next((data for data in getattr(annotation, "__metadata__", ()) if isinstance(data, metadata)), None)
        if found is None:
            continue
        held = _held(annotation)
        members = get_args(held) if isinstance(held, UnionType) or get_origin(held) is Union else (held,)
        yield (
            found,
            {
                "name": item.name,
                "type": held,
                "types": tuple(kind for member in members if (kind := _plain(member)) in _KINDS),
                "bounds": next((meta for member in members if (meta := _bounds(member))), msgspec.Meta()),
                "choices": tuple(
                    word for member in members if get_origin(member) is Literal for word in get_args(member)
                ),
                "default": item.default,
            },
        )


def text_of(value: object) -> str:
    """Return `value` as it is written in serving.properties, "" for None."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


_KINDS = (bool, int, float, str)
BOOLEANS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
# int() alone would accept 1_000 and digits of other scripts. Not every JSON reader supports longer numbers.
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _held(annotation: Any) -> Any:
    """Return the type without its metadata of ours. Python has merged Annotated[Annotated[int, Meta()], Option()] into one."""
    held, *metadata = get_args(annotation)
    bounds = [data for data in metadata if isinstance(data, msgspec.Meta)]
    return Annotated[held, bounds[0]] if bounds else held


def _plain(member: Any) -> Any:
    return get_args(member)[0] if get_origin(member) is Annotated else member


def _bounds(member: Any) -> msgspec.Meta | None:
    return next((data for data in getattr(member, "__metadata__", ()) if isinstance(data, msgspec.Meta)), None)
