"""The address of the remote engine, and its key."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from backends.remote.options import KEY_VARIABLE
from lmi_handlers.config.store_settings import OF_STORE_VARIABLE
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import redacted


def engine_url(text: str) -> str:
    """Return the URL before the paths of the remote's protocol. Raises `ConfigError` if it is not valid."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is not a number, or half an IPv6 address
        valid = False
    shown = redacted(text)
    if not valid or not text.isprintable() or " " in text:
        raise ConfigError(f"option.engine_url has value {shown!r}: must be http://host:port or https://host:port")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"option.engine_url has value {shown!r}: must have no password; set {KEY_VARIABLE} in the environment"
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"option.engine_url has value {shown!r}: must end with the host, the port or a path")
    return text.rstrip("/")


def is_operators(environ: Mapping[str, str], variable: str, text: str) -> bool:
    """Tell whether the operator has given the address or the command, and not only a model.

    On a server with several models, somebody else may have written a model's serving.properties.
    """
    return not environ.get(OF_STORE_VARIABLE) or environ.get(variable, "").strip() == text


def engine_key(environ: Mapping[str, str]) -> str | None:
    """Return the remote's key, or None if there is none. Raises `ConfigError` if it cannot be sent in a header."""
    key = environ.get(KEY_VARIABLE, "").strip()  # a file that a secret comes from often ends with a newline
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{KEY_VARIABLE} must only have printable ASCII characters")
    return key or None
