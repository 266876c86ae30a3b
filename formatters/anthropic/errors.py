"""Anthropic's error object. Source: Anthropic's API reference, "Errors"."""

from __future__ import annotations

from formatters.anthropic.schemas import AnthropicError, ErrorDetails
from formatters.base import encode
from lmi_handlers.core.errors import (
    DeadlineExceeded,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    TurnConflict,
    entry_of,
)

ERROR_TYPES: dict[type[LMIError], str] = {
    InvalidRequest: "invalid_request_error",
    PayloadTooLarge: "request_too_large",
    ModelNotFound: "not_found_error",
    TurnConflict: "invalid_request_error",
    QueueFull: "rate_limit_error",
    EngineNotReady: "overloaded_error",
    DeadlineExceeded: "timeout_error",
}
"""The `error.type` of an error class and its subclasses. Defaults to "api_error"."""

STATUS_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The `error.type` of a status that no route has answered with. Defaults to that of the status's class."""


def error_document(error: LMIError) -> bytes:
    """Render `{"type":"error","error":{"type":"invalid_request_error","message":"<cause>"}}`."""
    return encode(AnthropicError(ErrorDetails(entry_of(error, ERROR_TYPES, "api_error"), str(error))))


def status_error(status: int, message: str) -> AnthropicError:
    """Return the error for a status that no route has answered with."""
    default = "api_error" if status >= 500 else "invalid_request_error"
    return AnthropicError(ErrorDetails(STATUS_TYPES.get(status, default), message))
