"""msgspec's conversions of what clients send, with errors that name the field.

A number such as `4.0` is accepted where an integer is expected, as by the pydantic models of vLLM and LMI: JSON has only
one kind of number, and some clients write all of theirs with a point. TGI's own routes refuse it, as TGI does.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

import msgspec

from lmi_handlers.core.allowed_values import allowed_values, rule
from lmi_handlers.core.errors import InvalidBody

T = TypeVar("T")

_OTHER_VALUE = re.compile(r"(Invalid value|Invalid enum value) (.*)", re.DOTALL)
_OTHER_TEXT = "Expected `str` matching regex"
_SHOWN = 100
"""Characters of a value that is not allowed."""


def decode(data: bytes | msgspec.Raw, kind: type[T], *, prefix: str = "") -> T:
    """Decode JSON, which is at `prefix` in a body. Raises `InvalidBody` for a wrong type, and msgspec's other errors."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if not _met_a_float(error):
            raise conversion_error(error, kind, prefix=prefix) from error
        refusal = str(error)  # not the error, whose traceback would hold the body
    try:
        with_integers = msgspec.json.Decoder(object, float_hook=_Numbers(refusal)).decode(data)
        return msgspec.json.decode(msgspec.json.encode(with_integers), type=kind)
    except msgspec.ValidationError as error:
        raise conversion_error(error, kind, prefix=prefix) from error


def convert(value: object, kind: type[T], *, prefix: str = "") -> T:
    """Convert JSON that has been decoded already. Raises `InvalidBody`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if not _met_a_float(error):
            raise conversion_error(error, kind, prefix=prefix) from error
    return decode(msgspec.json.encode(value), kind, prefix=prefix)


def conversion_error(error: msgspec.ValidationError, kind: Any, *, prefix: str = "") -> InvalidBody:
    """Turn msgspec's message ("Expected `int`, got `str` - at `$.seed`") into one that starts with the field.

    `kind` is the type of the whole. Where it allows certain values only, the message lists them, and where a text must match
    a pattern, it says so in words.
    """
    text = str(error).replace(" - at `key` in `$", " as a name - at `$")
    message, _, path = text.rpartition(" - at `$") if " - at `$" in text else (text, "", "")
    path = path.rstrip("`")
    field, given = (prefix + path).lstrip(".") or None, None
    if (wrong := _OTHER_VALUE.fullmatch(message)) is not None:
        given, allowed = wrong[2], allowed_values(kind, path)
        if allowed and given not in map(repr, allowed):  # it may be allowed elsewhere, in another struct of a union
            shown = f"{given[:_SHOWN]}..." if len(given) > _SHOWN else given
            message = f"{wrong[1]} {shown}: must be one of {', '.join(allowed)}"
        given = given[:_SHOWN].strip("'")
    elif message.startswith(_OTHER_TEXT):
        message = rule(kind, path) or message
    return InvalidBody(message, field=field, given=given)


def _met_a_float(error: msgspec.ValidationError) -> bool:
    return ", got `float`" in str(error)


class _Numbers:
    """Converts the numbers with a point or an exponent in a JSON text. If there are too many, `refusal` says why not."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._left = _MOST_NUMBERS

    def __call__(self, text: str) -> float | int:
        self._left -= 1
        if self._left < 0:
            raise msgspec.ValidationError(self._refusal)
        value = float(text)
        if not math.isfinite(value):
            raise msgspec.ValidationError("Number out of range")
        return int(value) if value.is_integer() and abs(value) < _LARGEST else value


_LARGEST = 2**64
_MOST_NUMBERS = 10_000
"""Converting more would block the event loop of a web worker for many milliseconds, and no client sends so many."""
