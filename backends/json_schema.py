"""JSON schemas as llguidance is to read them: where it would be less strict than the schema, they are narrowed or refused.

It refuses by itself what it does not know (`not`, `uniqueItems`, ...). What is here was found by holding what it allows
against the jsonschema package.
"""

from __future__ import annotations

EXACT = 2**53
"""The library's numbers are doubles, which up to here are every integer."""

OPTIONS = {
    # One space at most, so that no model can go on with white space for ever.
    "whitespace_flexible": False,
    "item_separator": ",[ ]?",
    "key_separator": ":[ ]?",
}
"""How JSON is written, in llguidance's words."""

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
    """Return the schema with `OPTIONS`, its own parts changed in place.

    Raises `ValueError` for one that cannot be kept to, `RecursionError` for one that is nested too deeply.
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
        least, most = _number(schema.get(low)), _number(schema.get(high))
        if least is not None and most is not None and most < least:
            raise ValueError(f"{high} ({most}) must be greater than or equal to {low} ({least})")
    # The library counts a name that is written twice as two properties.
    least, required = _number(schema.get("minProperties")), schema.get("required")
    named = len(set(required)) if isinstance(required, list) else 0
    if least is not None and least > max(named, 1):
        raise ValueError(f"minProperties ({least}) must be at most the number of required properties ({named})")


def _exact_bound(name: str, value: object) -> object:
    """Return a bound that the library keeps to: a stricter one, where it does not keep to the schema's."""
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
    """JSON's `true` is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
