"""Declares a setting of the whole server: a field of a struct, with the `Variable` that sets it.

class MySettings(msgspec.Struct, frozen=True, kw_only=True):
    period: Annotated[PositiveFloat, Variable("LMI_PERIOD", "Seconds between two lines.")] = 60.0

The environment is read by this declaration. The options of `lmi serve`, the table in docs/options.md and the rows of
`lmi check` are made from it. Options of a model are declared in `option.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec

from lmi_handlers.config.option import DeclaredField, InvalidValue, declared_fields, text_of
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import REDACTED, is_hidden, redacted


@dataclass(frozen=True, eq=False)
class Variable:
    """An environment variable that sets a field. It counts as not set if it is empty.

    The first of `aliases` that is set counts if `name` is not. `flag` is the option of `lmi serve` that sets the variable,
    and `metavar` its value in `--help`. `read` returns the value of a field of any other type than text, a number, a
    boolean or a choice, and raises `InvalidValue`.
    """

    name: str
    help: str
    _: KW_ONLY
    aliases: tuple[str, ...] = ()
    flag: str = ""
    metavar: str | None = None
    read: Callable[[str], Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they take precedence."""
        return (self.name, *self.aliases)


class DeclaredVariable(DeclaredField, frozen=True, kw_only=True):
    """A field with its `Variable`."""

    variable: Variable

    @property
    def default_text(self) -> str:
        """The default as it would be written, "" if there is none."""
        return "" if self.default == () else text_of(self.default)

    def given(self, environ: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the name and the text of the variable that sets the field, None if none does."""
        found = ((name, environ.get(name, "")) for name in self.variable.names)
        return next(((name, text) for name, text in found if text.strip()), None)

    def value(self, environ: Mapping[str, str]) -> Any:
        """Return the field's value, by default that of the declaration. Raises `ConfigError`."""
        if (found := self.given(environ)) is None:
            return self.default
        name, text = found
        try:
            return self.parse(text)
        except InvalidValue as error:
            raise invalid(name, text, str(error)) from error

    def parse(self, text: str) -> Any:
        """Return the value that `text` stands for. Raises `InvalidValue`.

        A boolean is `true` or `false`, in any case, and nothing else: a switch such as SAGEMAKER_SECURE_MODE must never be
        off without a word.
        """
        if self.variable.read is not None:
            return self.variable.read(text)
        return super().parse(text if str in self.types else text.strip())

    def _read(self, text: str) -> Any:
        if bool in self.types:
            return {"true": True, "false": False}.get(text.lower(), text)
        return super()._read(text)


@functools.cache
def declared_variables(struct: type[msgspec.Struct]) -> Mapping[str, DeclaredVariable]:
    """Return field name -> declaration, in the order of the fields. Fields without a `Variable` are left out."""
    found = {}
    for variable, field in declared_fields(struct, Variable):
        default = None if field["default"] is msgspec.NODEFAULT else field["default"]
        found[field["name"]] = DeclaredVariable(variable=variable, **field | {"default": default})
    return found


@functools.cache
def all_variables(struct: type[msgspec.Struct]) -> tuple[DeclaredVariable, ...]:
    """Return the declarations of a struct, and in their places those of the structs that its fields may hold."""
    own, hints, found = declared_variables(struct), get_type_hints(struct), list[DeclaredVariable]()
    for name in struct.__struct_fields__:
        if name in own:
            found.append(own[name])
        for member in {*get_args(hints[name]), hints[name]} - {NoneType}:
            if isinstance(member, type) and issubclass(member, msgspec.Struct):
                found += all_variables(member)
    return tuple(found)


def read_values(struct: type[msgspec.Struct], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the declared fields: those that are set, else their defaults.

    Raises `ConfigError` that lists all mistakes, one per line.
    """
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, declared in declared_variables(struct).items():
        try:
            values[name] = declared.value(environ)
        except ConfigError as error:  # noqa: PERF203  few variables, read once
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return values


def invalid(name: str, text: str, cause: str) -> ConfigError:
    """Return the error for a variable whose value is not valid. `cause` says what is."""
    return ConfigError(f"{name} has value {shown(name, text)[:100]!r}: {cause}")


def shown(name: str, text: str) -> str:
    """Return the text of a variable as it may be shown, with credentials redacted."""
    return REDACTED if is_hidden(name) else redacted(text)
