"""OpenAI's error object. Source: OpenAI's API reference."""

from __future__ import annotations

from formatters.base import encode
from formatters.openai.responses import OpenAIError, OpenAIErrorDetails
from lmi_handlers.core.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
    RequestFailed,
)

ERROR_TYPES: dict[type[LMIError], str] = {
    InvalidRequest: "invalid_request_error",
    ModelNotFound: "invalid_request_error",
    QueueFull: "rate_limit_error",
    EngineError: "server_error",
    RequestFailed: "server_error",
}
"""The `error.type` for each error class, inherited by its subclasses."""

ERROR_CODES: dict[type[LMIError], str] = {
    ContextLengthExceeded: "context_length_exceeded",
    ModelNotFound: "model_not_found",
}
"""The `error.code` for each error class that has one."""


def error_document(error: LMIError) -> bytes:
    """Render `{"error":{"message":"<cause>","type":"invalid_request_error","param":"<field>","code":null}}`."""
    kind = next((ERROR_TYPES[ancestor] for ancestor in type(error).__mro__ if ancestor in ERROR_TYPES), "server_error")
    field = error.field if isinstance(error, InvalidRequest) else None
    code = next((code for kind, code in ERROR_CODES.items() if isinstance(error, kind)), None)
    return encode(OpenAIError(OpenAIErrorDetails(str(error), kind, field, code)))
