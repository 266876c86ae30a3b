"""OpenAI's error object. Source: OpenAI's API reference."""

from __future__ import annotations

from formatters.base import encode
from formatters.openai.schemas import OpenAIError, OpenAIErrorDetails
from lmi_handlers.core.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
    TurnConflict,
    entry_of,
)

ERROR_TYPES: dict[type[LMIError], str] = {
    InvalidRequest: "invalid_request_error",
    ModelNotFound: "invalid_request_error",
    TurnConflict: "invalid_request_error",
    QueueFull: "rate_limit_error",
}
"""The `error.type` of an error class and its subclasses. Defaults to "server_error"."""

ERROR_CODES: dict[type[LMIError], str | None] = {
    ContextLengthExceeded: "context_length_exceeded",
    ModelNotFound: "model_not_found",
}
"""The `error.code` for each error class that has one."""


def status_error(status: int, message: str) -> OpenAIError:
    """Return the error of a request that no route has answered."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return OpenAIError(OpenAIErrorDetails(message, kind, None, None))


def error_document(error: LMIError) -> bytes:
    """Render `{"error":{"message":"<cause>","type":"invalid_request_error","param":"<field>","code":null}}`."""
    return encode(
        OpenAIError(
            OpenAIErrorDetails(
                message=str(error),
                type=entry_of(error, ERROR_TYPES, "server_error"),
                param=error.field if isinstance(error, InvalidRequest) else None,
                code=entry_of(error, ERROR_CODES, None),
            )
        )
    )
