"""JSON of anything that a server may have written."""

from __future__ import annotations

import json


def json_bytes(value: object, indent: int | None = None) -> bytes:
    """Return a value as JSON. Unlike msgspec, this takes halves of surrogate pairs: servers and file names have them."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return text.encode(errors="backslashreplace")
