"""Sizes of memory and disks, as options give them."""

from __future__ import annotations

import re

from lmi_handlers.core.errors import ConfigError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_MOST = 2.0**40  # of any unit, because infinity has no integer


def parse_bytes(text: str, name: str) -> int:
    """Return the number of bytes that `text` stands for, such as "256M". Raises `ConfigError` that starts with `name`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ConfigError(f"{name}: must be a number of bytes such as 268435456, 256M or 2G, got {text}")
    return int(min(float(match[1]), _MOST) * _UNITS[match[2]])
