"""Errors of msgspec's conversions that name the field."""

from __future__ import annotations

import msgspec

from lmi_handlers.core.errors import InvalidBody


def conversion_error(error: msgspec.ValidationError, *, prefix: str = "") -> InvalidBody:
    """Turn msgspec's message ("Expected `int`, got `str` - at `$.seed`") into one that starts with the field."""
    message, _, path = str(error).replace(" - at `key` in `$", " as a name - at `$").partition(" - at `$")
    field = (prefix + path.rstrip("`")).lstrip(".")
    return InvalidBody(message, field=field or None)
