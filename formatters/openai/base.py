"""Shared by OpenAI's formats: finish reasons, logprobs, usage, and the end of a stream.

The JSON is compact. Source: OpenAI's API reference.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec import UNSET

from formatters.base import python_float
from formatters.openai.schemas import CompletionTokensDetails, PromptTokensDetails, Usage
from lmi_handlers import __version__
from lmi_handlers.core.outputs import FinishReason

SYSTEM_FINGERPRINT = f"lmi-handlers-{__version__}"
NO_PROBABILITY = -9999.0
"""Replaces logprobs that are missing or not finite, as in vLLM and Aleph Alpha's API."""

DONE = b"data: [DONE]\n\n"

FINISH_REASONS: dict[FinishReason | None, Any] = {
    None: None,  # not finished yet
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "content_filter",  # the closest of OpenAI's finish reasons
}


def finite(logprob: float | None) -> float:
    """Return the logprob, or `NO_PROBABILITY`."""
    return python_float(logprob) if logprob is not None and math.isfinite(logprob) else NO_PROBABILITY


def token_name(token_id: int) -> str:
    """Return a token as vLLM's `return_tokens_as_token_ids` writes it, where some tokens have no text of their own."""
    return f"token_id:{token_id}"


def usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int | None, reasoning_tokens: int | None = None
) -> Usage:
    """Return the usage object. It has no details of `cached_tokens` or `reasoning_tokens` that are None."""
    prompt = UNSET if cached_tokens is None else PromptTokensDetails(cached_tokens)
    completion = UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens)
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, prompt, completion)
