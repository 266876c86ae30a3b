"""The bounds of OpenAI's bodies that their types do not declare, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lmi_handlers.apis.documentation import GUIDED_BOUNDS, REQUEST_BOUNDS, Bounds, parameter_bounds
from lmi_handlers.apis.openai.body import MAX_LOGPROBS, ChatCompletionBody, CompletionBody
from lmi_handlers.apis.openai.responses_body import ResponseBody
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.sampling_params import RANGES

_LOGPROBS = {"minimum": 0, "maximum": MAX_LOGPROBS}


def chat_bounds() -> Bounds:
    """Return the bounds of chat completions."""
    return _bounds(ChatCompletionBody) | {"top_logprobs": _LOGPROBS, "messages": {"minItems": 1}}


def completion_bounds() -> Bounds:
    """Return the bounds of text completions."""
    return _bounds(CompletionBody) | {
        "max_tokens": {"minimum": 0, "maximum": RANGES["max_tokens"][1]},  # 0 is for `echo`
        "logprobs": _LOGPROBS,
    }


def response_bounds(budget: Budget) -> Bounds:
    """Return the bounds of responses."""
    return _bounds(ResponseBody) | {
        "input": {"minItems": 1, "maxItems": budget.max_messages},
        "background": {"const": False},
    }


def _bounds(body: type[msgspec.Struct]) -> dict[str, Mapping[str, Any]]:
    return {
        **parameter_bounds(body),
        "seed": {},  # may be negative
        "top_p": {"minimum": 0, "maximum": 1},  # 0 means the most probable token only
        "truncate_prompt_tokens": {"minimum": -1, "not": {"const": 0}},
        **GUIDED_BOUNDS,
        **REQUEST_BOUNDS,
    }
