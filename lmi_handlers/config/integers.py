"""Whole numbers in environment variables."""

from __future__ import annotations

from lmi_handlers.core.errors import ConfigError


def integer(name: str, text: str, high: int) -> int:
    """Return the value of the variable `name`, from 1 to `high`. Raises `ConfigError`."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= high):
        raise ConfigError(f"{name} has value {text!r}: must be an integer from 1 to {high}")
    return int(text)
