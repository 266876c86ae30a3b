"""Values of environment variables that are not options: switches and numbers. What is not one of them ends the start."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lmi_handlers.core.errors import ConfigError


def switch(environ: Mapping[str, str], name: str) -> bool:
    """Return whether a variable is `true`, in any case. Not set, empty and `false` mean off. Raises `ConfigError`.

    Any other word is an error, because a switch such as SAGEMAKER_SECURE_MODE must never be off without a word.
    """
    text = environ.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise ConfigError(f"{name} must be true or false, got {text[:100]!r}")
    return text == "true"


def integer(name: str, text: str, high: int) -> int:
    """Return the value of the variable `name`, from 1 to `high`. Raises `ConfigError`."""
    if not (re.fullmatch(r"\d{1,18}", text, re.ASCII) and 1 <= int(text) <= high):
        raise ConfigError(f"{name} has value {text[:100]!r}: must be an integer from 1 to {high}")
    return int(text)


def seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    """Return the value of a variable, a number above 0. Raises `ConfigError`."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"\d{1,8}(\.\d{1,6})?", text, re.ASCII) or float(text) <= 0:
        raise ConfigError(f"{name} must be a number above 0, got {text[:100]!r}")
    return float(text)
