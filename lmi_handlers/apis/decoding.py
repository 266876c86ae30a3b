"""Decodes JSON bodies, with errors that name the field."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from lmi_handlers.core.conversion import decode
from lmi_handlers.core.errors import InvalidBody, InvalidJson

T = TypeVar("T")


def decode_json(data: bytes) -> object:
    """Decode a body strictly.

    Raises `InvalidJson` if it is not exactly one JSON value; NaN or very deep nesting is not allowed.
    """
    try:
        return decode_typed(data, object)
    except InvalidBody as error:  # a number out of range
        raise InvalidJson(f"the body is not valid JSON: {error}") from error


def decode_typed(data: bytes | msgspec.Raw, kind: type[T], *, prefix: str = "") -> T:
    """Decode a body, or the part of it at `prefix`, as `kind`. Unknown fields are skipped without using memory.

    Raises `InvalidJson` for invalid JSON, and `InvalidBody` if the JSON does not have that type.
    """
    try:
        return decode(data, kind, prefix=prefix)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cause = error if memoryview(data).nbytes else "it is empty"
        raise InvalidJson(f"the body is not valid JSON: {cause}") from error
    except RecursionError as error:
        raise InvalidJson("the body is not valid JSON: it is nested too deeply") from error


def unknown_names(fields: Mapping[str, msgspec.Raw], kind: type[msgspec.Struct], *, nulls: bool) -> tuple[str, ...]:
    """Return the names in `fields` that `kind` has no field for. With `nulls`, names whose value is null count too."""
    known = _names(kind)
    return tuple([name for name in fields if name not in known and (nulls or not _is_null(fields[name]))])


@functools.cache
def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def _is_null(value: msgspec.Raw) -> bool:
    return memoryview(value).nbytes == len(b"null") and bytes(value) == b"null"
