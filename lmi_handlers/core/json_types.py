"""JSON types that several APIs use, and their schemas."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]

Schema = dict[str, Any]

PREFIX = "#/components/schemas/"


def reference(name: str) -> Schema:
    """Return a schema that refers to the component `name`."""
    return {"$ref": PREFIX + name}


def one_of(description: str, *names: str) -> msgspec.Meta:
    """Annotate a field that holds one of these components. msgspec itself can only tell tagged objects apart."""
    return msgspec.Meta(extra_json_schema={"anyOf": [reference(name) for name in names], "description": description})
