"""Generates the document's component schemas from Python types.

msgspec derives them from the types that decode the bodies. This module adds what msgspec does not support: TGI's names,
named unions, and unions of objects without a tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from lmi_handlers.core.json_types import PREFIX, Schema, reference


def components(types: Iterable[Any], names: Mapping[str, Any]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """Return a schema for each of `types`, and the components that those schemas refer to.

    `names` overrides the default name, which is the class name, and names types that have none. All types in `names`
    become components, whether they are used or not.
    """
    asked = list(dict.fromkeys([*types, *names.values()]))
    found, parts = msgspec.json.schema_components(asked, schema_hook=_any, ref_template=PREFIX + "{name}")
    schemas = dict(zip(asked, found, strict=True))
    renamed = {schemas[kind]["$ref"]: PREFIX + name for name, kind in names.items() if "$ref" in schemas[kind]}
    unions = {name: schemas[kind] for name, kind in names.items() if "$ref" not in schemas[kind]}
    naming = _Naming(renamed, unions)
    own = {renamed.get(PREFIX + name, PREFIX + name).removeprefix(PREFIX): schema for name, schema in parts.items()}
    own = {name: naming.parts(_without_nulls(schema) | {"title": name}) for name, schema in own.items()}
    own |= {name: naming.parts(schema) for name, schema in unions.items()}
    return {kind: naming.apply(schema) for kind, schema in schemas.items()}, dict(sorted(own.items()))


class _Naming:
    """Replaces schemas by references to named ones. `renamed` maps msgspec's references to ours."""

    def __init__(self, renamed: Mapping[str, str], unions: Mapping[str, Schema]) -> None:
        self._renamed = renamed
        self._unions = unions

    def apply(self, schema: Schema) -> Schema:
        """Return `schema` with every named part replaced by a reference, including `schema` itself."""
        for name, union in self._unions.items():
            if schema == union:
                return reference(name)
            members = union.get("anyOf", ())
            given = schema.get("anyOf", ())
            if members and "discriminator" not in union and all(member in given for member in members):
                others = [member for member in given if member not in members]
                schema = schema | {"anyOf": [reference(name), *others]}
        return self.parts(schema)

    def parts(self, schema: Schema) -> Schema:
        """Return `schema` with its named parts replaced by references, but not `schema` itself."""
        return {key: self._value(value) for key, value in schema.items()}

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self.apply(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return self._renamed.get(value, value) if isinstance(value, str) else value


_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "not")
_KEYWORDS = {
    "integer": _NUMERIC,
    "number": _NUMERIC,
    "boolean": ("const",),
    "string": ("minLength", "maxLength", "pattern", "enum", "const"),
    "array": ("minItems", "maxItems", "items", "const"),
    "object": ("propertyNames", "additionalProperties", "maxProperties"),
}
"""The keywords that apply to each JSON type."""


def bind(schema: Schema, keywords: Mapping[str, Any]) -> None:
    """Add keywords to a field's schema. If the field has several types, each one gets the keywords that apply to it."""
    for part in schema.get("anyOf", [schema]):
        part.update({key: value for key, value in keywords.items() if key in _KEYWORDS.get(part.get("type"), ())})


def _without_nulls(schema: Schema) -> Schema:
    """Remove null defaults: null means that the field is absent."""
    properties = {}
    for name, field in schema.get("properties", {}).items():
        default = field.get("default")
        if isinstance(default, dict):
            field = field | {"default": {key: value for key, value in default.items() if value is not None}}
        properties[name] = {key: value for key, value in field.items() if key != "default" or value is not None}
    return schema | {"properties": properties} if properties else schema


def _any(kind: type) -> Schema:
    """Return the schema of `object`, which means any JSON value."""
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError
