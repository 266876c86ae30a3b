"""Strategies for JSON schemas: schemas with short instances only, and any schema that the standard allows."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Schema = dict[str, Any]

NAMES = st.text("abcé \"\\'", min_size=1, max_size=4)
INTEGERS = st.integers(-200, 200)
EXACT_INTEGERS = st.integers(-(2**53), 2**53)
SCALARS = EXACT_INTEGERS | NAMES | st.booleans() | st.none() | st.sampled_from([0.5, -1.25, 1e-7])
FORMATS = (
    "date",
    "uuid",
    "ipv4",
)  # formats with texts of bounded length, unlike times, which may have any number of decimals
SOME_FORMATS = (*FORMATS, "time", "date-time", "duration", "email", "hostname", "ipv6", "uri")


def leaves() -> st.SearchStrategy[Schema]:
    """Schemas of values without parts."""
    ranges = st.tuples(INTEGERS, st.integers(0, 300), st.booleans()).map(
        lambda r: {"type": "integer", "minimum": r[0], "exclusiveMaximum" if r[2] else "maximum": r[0] + r[1] + 1}
    )
    lengths = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
        lambda pair: {"type": "string", "minLength": pair[0], "maxLength": sum(pair)}
    )
    simple: list[Schema] = [{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]
    return (
        st.sampled_from(simple)
        | st.sampled_from(["^[a-c]{1,3}$", "^(x|yz)?[0-9]{2}$", r"^\d-\w$"]).map(
            lambda pattern: {"type": "string", "pattern": pattern}
        )
        | st.sampled_from(FORMATS).map(lambda name: {"type": "string", "format": name})
        | lengths
        | ranges
        | st.integers(2, 9).map(lambda n: {"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": n})
        | st.lists(SCALARS, min_size=1, max_size=3).map(lambda values: {"enum": values})
        | SCALARS.map(lambda value: {"const": value})
    )


def objects(values: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Schemas of objects without additional properties."""
    return st.dictionaries(NAMES, values, min_size=1, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties))).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                "additionalProperties": False,
            }
        )
    )


def _containers(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda a: {"type": "array", "items": a[0], "minItems": a[1], "maxItems": a[1] + a[2]}
    )
    tuples = st.lists(inner, min_size=1, max_size=2).map(
        lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    )
    choices = st.lists(inner, min_size=2, max_size=3).map(lambda options: {"anyOf": options})
    described = inner.map(lambda schema: {"allOf": [schema], "title": "x", "description": "one of them", "default": {}})
    return objects(inner) | arrays | tuples | choices | described


def schemas() -> st.SearchStrategy[Schema]:
    """Schemas that the engines support and that have only short instances."""
    return st.recursive(leaves(), _containers, max_leaves=6)


def object_schemas() -> st.SearchStrategy[Schema]:
    """Like `schemas`, but of objects, as TGI requires. Some have definitions."""
    plain = objects(schemas())
    referring = st.tuples(objects(schemas()), schemas()).map(
        lambda pair: (
            pair[0]
            | {
                "properties": pair[0]["properties"] | {"ref": {"$ref": "#/$defs/part"}},
                "required": [*pair[0]["required"], "ref"],
                "$defs": {"part": pair[1]},
            }
        )
    )
    return plain | referring


def any_schemas() -> st.SearchStrategy[Schema | bool]:
    """Schemas with any combination of the standard's assertion keywords."""
    counts = st.integers(0, 3)
    numbers = INTEGERS | st.sampled_from([0.5, -2.5, 2**53 + 1, -(2**63), 2**63 - 1, 2**64, 1e300])
    strings = st.sampled_from(["a", "^b", "[a-c]{2}", "c$", ""])
    own = {
        "type": st.sampled_from(["string", "integer", "number", "object", "array", "boolean", "null"])
        | st.sampled_from([["string", "null"], ["integer", "object"]]),
        "enum": st.lists(SCALARS | st.integers(), min_size=1, max_size=3, unique_by=repr),
        "const": SCALARS | st.integers() | st.lists(st.integers(), max_size=2),
        "minimum": numbers,
        "maximum": numbers,
        "exclusiveMinimum": numbers,
        "exclusiveMaximum": numbers,
        "multipleOf": st.sampled_from([1, 2, 3, 7, 0.5, 2.0]),
        "minLength": counts,
        "maxLength": counts,
        "pattern": strings,
        "minItems": counts,
        "maxItems": counts,
        "uniqueItems": st.booleans(),
        "minContains": counts,
        "minProperties": counts,
        "maxProperties": counts,
        "required": st.lists(st.sampled_from(["a", "b", "c"]), max_size=2, unique=True),
        "dependentRequired": st.just({"a": ["b"]}),
        "format": st.sampled_from(SOME_FORMATS),
    }

    def with_parts(inner: st.SearchStrategy[Schema | bool]) -> st.SearchStrategy[Schema | bool]:
        several = st.lists(inner, min_size=1, max_size=2)
        named = st.dictionaries(st.sampled_from(["a", "b", "é\n"]), inner, max_size=2)
        parts = {
            "properties": named,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "."]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "dependentSchemas": named,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
        }
        return _some_of(own | parts)

    return st.recursive(st.booleans() | _some_of(own), with_parts, max_leaves=4)


def _some_of(keywords: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Schema]:
    return st.sets(st.sampled_from(sorted(keywords)), max_size=4).flatmap(
        lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in sorted(chosen)})
    )


Example = TypeVar("Example")


def examples(strategy: st.SearchStrategy[Example], count: int) -> list[Example]:
    """This many examples of the strategy, always the same ones."""
    found: list[Example] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: Example) -> None:
        found.append(example)

    collect()
    return found
