"""Prepares JSON schemas for llguidance. Schemas that it would not enforce in full are narrowed or rejected here.

llguidance itself rejects keywords that it does not support (`not`, `uniqueItems`, ...). The cases here were found by
comparing what it allows with the jsonschema package.
"""

from __future__ import annotations

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


def strict_schema(schema: object) -> dict[str, object]:
    """Return the schema with `OPTIONS` added. Its nested parts are changed in place.

    Raises `ValueError` if the schema cannot be enforced, and `RecursionError` if it is nested too deeply.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be an object, got {schema!r:.100}")
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
