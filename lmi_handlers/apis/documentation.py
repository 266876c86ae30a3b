"""Types of the APIs in the OpenAPI document, and the parts that several of them share there.

Bounds are those that the dialects check themselves, to control the error messages. Bounds that depend on the loaded
model or on other fields are not included, because a schema cannot express them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lmi_handlers.apis.parameters import names_of
from lmi_handlers.core.json_types import Schema
from lmi_handlers.core.request import MAX_CACHE_SALT, MAX_PRIORITY
from lmi_handlers.core.sampling_params import ABOVE_ZERO, RANGES, StructuredOutputs

Bounds = Mapping[str, Mapping[str, Any]]
"""JSON schema keywords by field."""


class Documentation(msgspec.Struct, frozen=True, kw_only=True):
    """An API's part of the OpenAPI document, besides its routes.

    `names` are the names of types in the document, where they differ from the class names, or for types that have none.
    `examples` has examples of bodies and answers, by their types. That of a type serves for lists of it, too. `bounds` are
    bounds of fields, by the name of the type in the document. `union_bounds` are JSON schema keywords for types in `names`
    that are unions. `kept` are names that the document has even if no route refers to them.
    """

    names: Mapping[str, Any] = {}
    examples: Mapping[Any, object] = {}
    bounds: Mapping[str, Bounds] = {}
    union_bounds: Mapping[str, Mapping[str, Any]] = {}
    kept: tuple[str, ...] = ()


QUESTION = "What is Deep Learning?"
PROMPT_EXAMPLE: Schema = {"inputs": QUESTION, "parameters": {"max_new_tokens": 20}}
CHAT_EXAMPLE: Schema = {"messages": [{"role": "user", "content": QUESTION}]}

NON_EMPTY_TEXT: Schema = {"type": "string", "minLength": 1}
NON_EMPTY: Schema = {"minLength": 1, "minItems": 1}
REQUEST_BOUNDS: Bounds = {
    "priority": {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
    "cache_salt": {"minLength": 1, "maxLength": MAX_CACHE_SALT},
}
GUIDED_BOUNDS: Bounds = dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), NON_EMPTY)
STRUCTURED_OUTPUTS_BOUNDS: Bounds = dict.fromkeys(StructuredOutputs.__struct_fields__, NON_EMPTY)


def parameter_bounds(body: type[msgspec.Struct]) -> dict[str, Mapping[str, Any]]:
    """Return the bounds of the fields of `body` that set a field of `SamplingParams`."""
    known = _sampling_bounds()
    return {field: known[name] for field, name in names_of(body).items() if name in known}


def _sampling_bounds() -> dict[str, dict[str, Any]]:
    bounds: dict[str, dict[str, Any]] = {
        name: {"minimum": low, "maximum": high} for name, (low, high) in RANGES.items()
    }
    for name in ABOVE_ZERO:
        bounds.setdefault(name, {}).pop("minimum", None)
        bounds[name]["exclusiveMinimum"] = 0
    texts: Schema = {"minLength": 1, "items": NON_EMPTY_TEXT}
    ids: Schema = {"items": {"type": "integer", "minimum": 0}}
    return bounds | {
        "stop": texts,
        "bad_words": texts,
        "stop_token_ids": ids,
        "allowed_token_ids": ids | {"minItems": 1},
        "logit_bias": {
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "items": {"type": "number", "minimum": -100, "maximum": 100},
        },
    }
