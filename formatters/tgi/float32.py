"""Numbers as TGI renders them."""

from __future__ import annotations

import math
from ctypes import c_float

from formatters.base import literal


def number(value: float | None) -> float | None:
    """Return what the encoder writes as `float32` renders `value`."""
    return None if value is None else literal(float32(value))


def float32(value: float) -> str:
    """Render a number as TGI does: with the fewest digits that identify its 32-bit float.

    NaN and infinity are null. The layout is that of the ryu library: plain decimals from 1e-6 up to 1e13, otherwise an
    exponent as in `1.5e-7` or `1e15`. msgspec and Python do neither. Below 1e-28 and above 1e26 a few powers of two get
    one digit too many, but logprobs are never that small or large.
    """
    single = to_float32(value)
    if not math.isfinite(single):
        return "null"
    sign = "-" if math.copysign(1.0, single) < 0 else ""
    if single == 0.0:
        return f"{sign}0.0"
    digits, exponent = _shortest(abs(single))
    point = exponent + 1  # digits before the decimal point
    if 0 < point <= 13:
        digits = digits.ljust(point, "0")
        return f"{sign}{digits[:point]}.{digits[point:] or '0'}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{exponent}"


def to_float32(value: float) -> float:
    """Round to the nearest 32-bit float, or to infinity if the value is too large."""
    return c_float(value).value


def _shortest(single: float) -> tuple[str, int]:
    """Return the digits without trailing zeros, and the exponent of the first digit."""
    text = f"{single:.8e}"  # nine digits identify any 32-bit float, and it preserves any six
    for precision in (7, 6, 5):
        shorter = f"{single:.{precision}e}"
        if to_float32(float(shorter)) != single:
            break
        text = shorter
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", "").rstrip("0"), int(exponent)
