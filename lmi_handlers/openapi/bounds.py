"""Bounds on fields that the dialects check themselves, to control the error messages.

Bounds that depend on the loaded model or on other fields are not included, because a schema cannot express them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmi_handlers.apis.aleph_alpha.completion import NEUTRAL
from lmi_handlers.apis.lmi.body import SPELLINGS
from lmi_handlers.apis.mindie.body import MAX_INPUT_CHARACTERS
from lmi_handlers.apis.openai.body import MAX_LOGPROBS
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.json_types import Schema
from lmi_handlers.core.request import MAX_PRIORITY
from lmi_handlers.core.sampling_params import ABOVE_ZERO, RANGES, StructuredOutputs

Bounds = Mapping[str, Mapping[str, Any]]
"""JSON schema keywords by field."""

_TEXT: Schema = {"type": "string", "minLength": 1}
_SOME: Schema = {"minLength": 1, "minItems": 1}
_UINT64 = 2**64 - 1


def _of_sampling_params() -> dict[str, dict[str, Any]]:
    bounds: dict[str, dict[str, Any]] = {
        name: {"minimum": low, "maximum": high} for name, (low, high) in RANGES.items()
    }
    for name in ABOVE_ZERO:
        bounds.setdefault(name, {}).pop("minimum", None)
        bounds[name]["exclusiveMinimum"] = 0
    texts: Schema = {"minLength": 1, "items": _TEXT}
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


def of_tgi_parameters(properties: ServingProperties) -> Bounds:
    """Return the bounds that TGI's validation in `apis/tgi/body.py` enforces."""
    fraction = {"exclusiveMinimum": 0, "exclusiveMaximum": 1}
    stop = {"maxItems": properties.max_stop_sequences, "items": _TEXT}
    return {
        "best_of": {"minimum": 1, "maximum": properties.max_best_of},
        "temperature": {"exclusiveMinimum": 0, "maximum": RANGES["temperature"][1]},
        "repetition_penalty": {"exclusiveMinimum": 0},
        "frequency_penalty": {"minimum": -2, "maximum": 2},
        "top_k": {"minimum": 1},
        "top_p": fraction,
        "typical_p": fraction,
        "max_new_tokens": {"minimum": 1},
        "stop": stop,
        "stop_sequences": stop,
        "truncate": {"minimum": 1},
        "seed": {"maximum": _UINT64},
        "top_n_tokens": {"maximum": properties.max_top_n_tokens},
    }


def of_mindie_parameters(properties: ServingProperties) -> Bounds:
    """Return the bounds of MindIE's dialect: TGI's, except that the seed must not be 0."""
    return {**of_tgi_parameters(properties), "seed": {"minimum": 1, "maximum": _UINT64}}


PROMPT: Bounds = {"inputs": {"minLength": 1}}
REGEX: Bounds = {"value": _SOME}
STRUCTURED_OUTPUTS: Bounds = dict.fromkeys(StructuredOutputs.__struct_fields__, _SOME)
_GUIDED: dict[str, dict[str, Any]] = dict.fromkeys(
    ("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _SOME
)
_PRIORITY: dict[str, dict[str, Any]] = {"priority": {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY}}
LMI_PROMPT: Bounds = {"inputs": {"minLength": 1, "minItems": 1, "items": _TEXT}}
MINDIE_PROMPT: Bounds = {"inputs": {"minLength": 1, "maxLength": MAX_INPUT_CHARACTERS}}


def narrowed(bounds: Bounds, budget: Budget) -> Bounds:
    """Return `bounds`, tightened by the budget of a request."""
    added: dict[str, Mapping[str, Any]] = {
        **budget.keywords(),
        **{name: {"maximum": budget.max_sequences} for name in ("n", "best_of", "num_beams")},
        "inputs": {"maxItems": budget.max_sequences},
    }
    return {name: _both(bounds.get(name, {}), added.get(name, {})) for name in {**bounds, **added}}


def _both(keywords: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of keywords. The stricter bound wins."""
    joined = {**keywords, **others}
    for name in keywords.keys() & others.keys():
        if name == "items":
            joined[name] = _both(keywords[name], others[name])
        elif name.startswith("min"):
            joined[name] = max(keywords[name], others[name])
        elif name.startswith("max"):
            joined[name] = min(keywords[name], others[name])
    return joined


def of_lmi_parameters() -> Bounds:
    """Return the bounds of `SamplingParams` under LMI's names, and the bounds of LMI's own fields."""
    known = _of_sampling_params()
    bounds = {
        spelling: keywords
        for name, keywords in known.items()
        for spelling in SPELLINGS.get(name, (name,))
        if spelling != "do_sample"
    }
    seed = known["seed"] | {"pattern": "^[0-9]{1,19}$"}
    return bounds | {
        "seed": seed,
        "random_seed": seed,
        "num_beams": {"minimum": 1, "maximum": known["n"]["maximum"]},
        "truncate": {"minimum": 1},
        "length_penalty": {"minimum": -10, "maximum": 10},
        "len_penalty": {"minimum": -10, "maximum": 10},
        "prompt_logprobs": {"minimum": 0},  # only the prompt tokens' own are shown
        **_GUIDED,
        **_PRIORITY,
    }


def _of_openai() -> dict[str, dict[str, Any]]:
    known = _of_sampling_params()
    least = {"minimum": 1}
    return known | {
        "seed": {},  # may be negative
        "top_p": {"minimum": 0, "maximum": 1},  # 0 means the most probable token only
        "max_completion_tokens": known["max_tokens"],
        "best_of": known["n"],
        "truncate_prompt_tokens": least,
        **_GUIDED,
        **_PRIORITY,
    }


def of_openai_chat() -> Bounds:
    """Return the bounds of chat completions."""
    return _of_openai() | {"top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS}, "messages": {"minItems": 1}}


def of_openai_completion() -> Bounds:
    """Return the bounds of text completions."""
    most = {"minimum": 0, "maximum": RANGES["max_tokens"][1]}
    return _of_openai() | {"max_tokens": most, "logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS}}


def of_aleph_alpha() -> Bounds:
    """Return the bounds of Aleph Alpha's chat that its body type does not declare."""
    known = _of_sampling_params()
    given = {name: known[name] for name in ("n", "max_tokens", "stop", "logit_bias")}
    return given | {"maximum_tokens": known["max_tokens"], "messages": {"minItems": 1}}


ALEPH_ALPHA_PROMPT_ITEM: Bounds = {"controls": {"maxItems": 0}}


def of_aleph_alpha_completion() -> Bounds:
    """Return the bounds of Aleph Alpha's text completions."""
    known = _of_sampling_params()
    same = ("temperature", "n", "logit_bias")
    return {name: known[name] for name in same} | {
        "maximum_tokens": {"minimum": 0, "maximum": RANGES["max_tokens"][1]},  # 0 only with `echo`
        "minimum_tokens": known["min_tokens"],
        "top_p": {"minimum": 0, "maximum": 1},
        "best_of": known["n"],
        "stop_sequences": known["stop"],
        "completion_bias_exclusion": known["bad_words"],
        **{name: {"const": neutral} for name, neutral in NEUTRAL.items()},
    }
