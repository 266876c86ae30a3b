"""SageMaker's custom attributes: what a client says about its request, and gets back with the answer.

SageMaker passes the header through as it is, so containers have lists of their own. All of these are read:

    key=value;key2=value2       LMI, JumpStart
    key=value,key2=value2       if there is no semicolon and every part has a key
    {"key":"value"}             an object of texts, numbers and booleans

Source of the limits: `CustomAttributesHeader` in SageMaker's service model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from lmi_handlers.core.errors import InvalidRequest

HEADER = "X-Amzn-SageMaker-Custom-Attributes"
MAX_LENGTH = 1024
OWN_PREFIX = "x-lmi-"
"""Attributes that the server adds begin with it. What a client has sent under one of these names does not come back."""

_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_CANNOT_ECHO = re.compile(r"[^\x20-\x3a\x3c-\x7e]")
"""Everything but printable ASCII, and the semicolon, which would begin another attribute."""


def list_keys(text: str) -> tuple[str, ...]:
    """Return the keys in a comma-separated list. Raises `ValueError` for an invalid key."""
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    for key in keys:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a key: 1 to 64 ASCII letters, digits, `_`, `.` or `-`")
    return keys


def parse_attributes(text: str) -> dict[str, str]:
    """Return the attributes. If a key is repeated, the last one counts. Text without any key has no attributes.

    Raises `InvalidRequest` for what SageMaker would not pass on: more than 1,024 characters, or others than ASCII.
    """
    if not text:
        return {}
    if len(text) > MAX_LENGTH:
        raise InvalidRequest(f"must have at most {MAX_LENGTH} characters, got {len(text)}", field=HEADER)
    if not text.isascii():
        raise InvalidRequest("must be ASCII", field=HEADER)
    if text.lstrip().startswith("{"):
        return _parse_object(text)
    parts = text.split(";")
    if len(parts) == 1 and all("=" in part for part in text.split(",")):
        parts = text.split(",")
    pairs = (part.partition("=") for part in parts if "=" in part)
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def render_attributes(attributes: Mapping[str, str]) -> str:
    """Return the value of a header, `key=value;key2=value2`: only printable ASCII, and whole pairs.

    A pair that does not fit after those before it is left out.
    """
    pairs: list[str] = []
    length = -1
    for key, value in attributes.items():
        pair = _CANNOT_ECHO.sub("?", f"{key}={value}")
        if length + 1 + len(pair) <= MAX_LENGTH:
            length += 1 + len(pair)
            pairs.append(pair)
    return ";".join(pairs)


def _parse_object(text: str) -> dict[str, str]:
    try:
        found = msgspec.json.decode(text, type=dict[str, str | int | float | bool])
    except msgspec.DecodeError:
        return {}
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in found.items()
    }
