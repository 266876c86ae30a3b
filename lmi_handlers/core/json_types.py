"""Types of JSON values that several APIs use, and their schemas."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]

Schema = dict[str, Any]

PREFIX = "#/components/schemas/"


def reference(name: str) -> Schema:
    """Return the schema that says "see there"."""
    return {"$ref": PREFIX + name}


def one_of(description: str, *names: str) -> msgspec.Meta:
    """What a field is annotated with that holds one of these components: msgspec itself tells objects by tags only."""
    return msgspec.Meta(extra_json_schema={"anyOf": [reference(name) for name in names], "description": description})
