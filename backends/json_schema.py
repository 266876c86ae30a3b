"""Prepares JSON schemas, so that every library understands the same by them.

`explicit_schema` is for all libraries: it writes down what JSON Schema leaves open and clients rarely mean.
`strict_schema` is for llguidance: schemas that it would not enforce in full are narrowed or rejected.

llguidance itself rejects keywords that it does not support (`not`, `uniqueItems`, ...). The cases here were found by
comparing what it allows with the jsonschema package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import StructuredOutputs

EXACT = 2**53
"""llguidance uses doubles, which represent all integers exactly up to this one."""

OPTIONS = {
    # At most one space, so that a model cannot generate endless white space.
    "whitespace_flexible": False,
    "item_separator": ",[ ]?",
    "key_separator": ":[ ]?",
}
"""llguidance's options for white space in JSON."""

_BOUNDS = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
)
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_VALUES = ("const", "enum")
_ANNOTATIONS = ("default", "examples")

_OBJECT = ("properties", "patternProperties")
_IMPLIED_TYPES = (((*_OBJECT, "additionalProperties"), "object"), (("items", "prefixItems"), "array"))
_COMBINING = ("allOf", "anyOf", "oneOf")
_PARTS = (*_COMBINING, "items", "prefixItems", "additionalProperties")
"""Keywords with a schema or a list of schemas. `not` and `if` are missing: closing an object there would open another."""


def explicit_schema(schema: str, *, strict: bool) -> dict[str, Any]:
    """Read a schema's JSON text and write down what it implies, by the rules of xgrammar's strict mode.

    A schema without `type` that has `properties` (or the like) is one of objects, one with `items` one of arrays. If
    `strict`, an object has no properties and an array no items but those declared. `additionalProperties` and `items`
    say otherwise. Names in `required` count as declared. Schemas that describe one object together, such as those of an
    `allOf`, stay open, because none of them knows the others' properties.

    Raises `ValueError`, and `RecursionError` if the text is nested too deeply.
    """
    root = json.loads(schema)
    if root is True:
        return {}
    if not isinstance(root, dict):
        raise ValueError(f"a schema must be an object, got {root!r:.100}")
    schemas = list(_schemas(root))
    combined = _combined(root, schemas) if strict else set()
    for part in schemas:
        for keywords, kind in _IMPLIED_TYPES:
            if any(keyword in part for keyword in keywords):
                part.setdefault("type", kind)
        _declare(part, closed=strict and id(part) not in combined)
    return root


def explicit_json(wanted: StructuredOutputs) -> str | None:
    """Return `wanted.json` as `explicit_schema` writes it, for engines that take JSON text. Raises `InvalidRequest`."""
    if wanted.json is None:
        return None
    try:
        return json.dumps(explicit_schema(wanted.json, strict=wanted.strict))
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"cannot be compiled: {error}", field="structured_outputs") from error


def _declare(schema: dict[str, Any], *, closed: bool) -> None:
    """Say in the schema whether there may be more properties or items than those declared."""
    if any(keyword in schema for keyword in _OBJECT) and "unevaluatedProperties" not in schema:
        properties, required = schema.get("properties"), schema.get("required")
        if "additionalProperties" not in schema and isinstance(properties, dict) and isinstance(required, list):
            for name in required:
                if isinstance(name, str) and "patternProperties" not in schema:
                    properties.setdefault(name, {})
        schema.setdefault("additionalProperties", not closed)
    if "prefixItems" in schema and "unevaluatedItems" not in schema:
        schema.setdefault("items", not closed)


def _schemas(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema and all schemas in it. Needs no recursion."""
    waiting: list[object] = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            yield part
            waiting += [part[keyword] for keyword in _PARTS if keyword in part]
            named = [part[keyword] for keyword in _NAMED_SCHEMAS if isinstance(part.get(keyword), dict)]
            waiting += [schema for schemas in named for schema in schemas.values()]


def _combined(root: dict[str, Any], schemas: list[dict[str, Any]]) -> set[int]:
    """Return the `id` of each schema that describes an object together with another one, at the same place."""
    waiting = [schema for schema in schemas if _combines(schema)]
    found: set[int] = set()
    while waiting:
        schema = waiting.pop()
        if id(schema) not in found:
            found.add(id(schema))
            members = [member for keyword in _COMBINING for member in _list(schema.get(keyword))]
            members.append(_target(root, schema.get("$ref")))
            waiting += [member for member in members if isinstance(member, dict)]
    return found


def _combines(schema: dict[str, Any]) -> bool:
    """Return whether more than one part of the schema says something about an object's properties."""
    own = any(keyword in schema for keyword in (*_OBJECT, "additionalProperties"))
    members = [_describes(member) for member in _list(schema.get("allOf"))]
    choices = [any(map(_describes, _list(schema.get(keyword)))) for keyword in ("anyOf", "oneOf")]
    return sum((own, "$ref" in schema, *members, *choices)) > 1


def _describes(member: object) -> bool:
    """Return whether a member of an `allOf` or the like may have properties."""
    return isinstance(member, dict) and any(keyword in member for keyword in (*_OBJECT, *_COMBINING, "$ref"))


def _target(root: object, reference: object) -> object:
    """Return what a pointer into the same document refers to, None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for name in unquote(reference[1:]).split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal():
            found = found[int(key)] if int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def strict_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with `OPTIONS` added. Its nested parts are changed in place.

    Raises `ValueError` if the schema cannot be enforced, and `RecursionError` if it is nested too deeply.
    """
    _restrict(schema)
    return schema | {"x-guidance": OPTIONS}


def _restrict(schema: object) -> None:
    if isinstance(schema, list):
        for item in schema:
            _restrict(item)
    if not isinstance(schema, dict):
        return
    _check_bounds(schema)
    for name, value in schema.items():
        if name in _LOW or name in _HIGH:
            schema[name] = _exact_bound(name, value)
        elif name in _VALUES:
            _check_exact(name, value)
        elif name in _NAMED_SCHEMAS and isinstance(value, dict):
            for part in value.values():
                _restrict(part)
        elif name not in _ANNOTATIONS:
            _restrict(value)


def _check_bounds(schema: dict[str, object]) -> None:
    for low, high in _BOUNDS:
        minimum, maximum = _number(schema.get(low)), _number(schema.get(high))
        if minimum is not None and maximum is not None and maximum < minimum:
            raise ValueError(f"{high} ({maximum}) must be greater than or equal to {low} ({minimum})")
    # llguidance counts a repeated property name as two properties.
    least, required = _number(schema.get("minProperties")), schema.get("required")
    named = len(set(required)) if isinstance(required, list) else 0
    if least is not None and least > max(named, 1):
        raise ValueError(f"minProperties ({least}) must be at most the number of required properties ({named})")


def _exact_bound(name: str, value: object) -> object:
    """Return a bound that llguidance enforces, which may be stricter. Raises `ValueError` if there is none."""
    number = _number(value)
    if number is None or abs(number) <= EXACT:
        return value
    if (number > 0) == (name in _LOW):
        raise ValueError(f"{name} ({number}) is beyond 2**53, where numbers are not exact")
    return EXACT if number > 0 else -EXACT


def _check_exact(name: str, value: object) -> None:
    number = _number(value)
    if number is not None and abs(number) > EXACT:
        raise ValueError(f"{name} ({number}) is beyond 2**53, where numbers are not exact")
    if isinstance(value, list | dict):
        for part in value if isinstance(value, list) else value.values():
            _check_exact(name, part)


def _number(value: object) -> int | float | None:
    """Return the value if it is a number, else None. JSON's `true` and `false` are not numbers."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
