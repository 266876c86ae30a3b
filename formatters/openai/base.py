"""Shared by OpenAI's formats: finish reasons, usage, logprobs, and the start of each object.

The JSON is compact. Source: OpenAI's API reference.
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring as quote  # what json.dumps uses with ensure_ascii=False

from lmi_handlers import __version__
from lmi_handlers.core.outputs import FinishReason

SYSTEM_FINGERPRINT = f"lmi-handlers-{__version__}"
NO_PROBABILITY = -9999.0
"""Replaces logprobs that are missing or not finite, as in vLLM and Aleph Alpha's API."""

DONE = b"data: [DONE]\n\n"

FINISH_REASONS = {
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "content_filter",  # the closest of OpenAI's finish reasons
}


def finish_reason(reason: FinishReason | None) -> str:
    """Render the finish reason as JSON."""
    return "null" if reason is None else f'"{FINISH_REASONS[reason]}"'


def number(logprob: float | None) -> str:
    """Render a logprob as JSON."""
    return repr(logprob) if logprob is not None and math.isfinite(logprob) else repr(NO_PROBABILITY)


def usage(prompt_tokens: int, completion_tokens: int) -> str:
    """Render the usage object."""
    total = prompt_tokens + completion_tokens
    return f'{{"prompt_tokens":{prompt_tokens},"completion_tokens":{completion_tokens},"total_tokens":{total}}}'


def head(identity: str, kind: str, created: int, model: str) -> str:
    """Render the fields at the start of every object in an answer."""
    return (
        f'{{"id":{quote(identity)},"object":"{kind}","created":{created},"model":{quote(model)},'
        f'"system_fingerprint":"{SYSTEM_FINGERPRINT}","choices":'
    )
