"""What OpenAI's formats share: errors, ids, usage, and tokens with their probabilities.

Source: OpenAI's API reference. Compact JSON.
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring as quote  # what json.dumps uses with ensure_ascii=False

import msgspec

from lmi_handlers import __version__
from lmi_handlers.core.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
    RequestFailed,
)
from lmi_handlers.core.outputs import FinishReason

SYSTEM_FINGERPRINT = f"lmi-handlers-{__version__}"
NO_PROBABILITY = -9999.0
"""What stands for a logprob that JSON cannot hold, as vLLM and Aleph Alpha have it."""

DONE = b"data: [DONE]\n\n"

ERROR_TYPES: dict[type[LMIError], str] = {
    InvalidRequest: "invalid_request_error",
    ModelNotFound: "invalid_request_error",
    QueueFull: "rate_limit_error",
    EngineError: "server_error",
    RequestFailed: "server_error",
}
"""`error.type` by error, looked up along the class's ancestors."""

ERROR_CODES: dict[type[LMIError], str] = {
    ContextLengthExceeded: "context_length_exceeded",
    ModelNotFound: "model_not_found",
}
"""`error.code` by error, for those that have one."""

FINISH_REASONS = {
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "content_filter",  # none of the other words says it
}


def error_document(error: LMIError) -> bytes:
    """Render `{"error":{"message":"<cause>","type":"invalid_request_error","param":"<field>","code":null}}`."""
    kind = next((ERROR_TYPES[ancestor] for ancestor in type(error).__mro__ if ancestor in ERROR_TYPES), "server_error")
    return msgspec.json.encode(
        {
            "error": {
                "message": str(error),
                "type": kind,
                "param": error.field if isinstance(error, InvalidRequest) else None,
                "code": next((code for kind, code in ERROR_CODES.items() if isinstance(error, kind)), None),
            }
        }
    )


def finish_reason(reason: FinishReason | None) -> str:
    """Render why a choice ended as JSON."""
    return "null" if reason is None else f'"{FINISH_REASONS[reason]}"'


def number(logprob: float | None) -> str:
    """Render a logprob."""
    return repr(logprob) if logprob is not None and math.isfinite(logprob) else repr(NO_PROBABILITY)


def usage(prompt_tokens: int, completion_tokens: int) -> str:
    """Render the usage object."""
    total = prompt_tokens + completion_tokens
    return f'{{"prompt_tokens":{prompt_tokens},"completion_tokens":{completion_tokens},"total_tokens":{total}}}'


def head(identity: str, kind: str, created: int, model: str) -> str:
    """Render what every object of an answer begins with."""
    return (
        f'{{"id":{quote(identity)},"object":"{kind}","created":{created},"model":{quote(model)},'
        f'"system_fingerprint":"{SYSTEM_FINGERPRINT}","choices":'
    )
