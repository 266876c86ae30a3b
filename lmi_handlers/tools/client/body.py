"""A request's body as it is given to a command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lmi_handlers.core.errors import ConfigError


def read_body(given: str | None) -> bytes:
    """Return the body: the text itself, that of @FILE, or standard input for - or nothing. Raises `ConfigError`."""
    if given is None or given == "-":
        return sys.stdin.buffer.read()
    if not given.startswith("@"):
        return os.fsencode(given)  # as it was typed, UTF-8 or not
    try:
        return Path(given[1:]).read_bytes()
    except OSError as error:
        raise ConfigError(f"{given[1:]} cannot be read: {error.strerror}") from error
