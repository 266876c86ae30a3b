"""The error object of llama.cpp's server."""

from __future__ import annotations

from formatters.base import encode
from formatters.llama_cpp.schemas import LlamaCppError, LlamaCppErrorDetails
from lmi_handlers.core.errors import (
    ContextLengthExceeded,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
    UnsupportedFeature,
    entry_of,
)

ERROR_TYPES: dict[type[LMIError], str] = {
    InvalidRequest: "invalid_request_error",
    UnsupportedFeature: "not_supported_error",
    ContextLengthExceeded: "exceed_context_size_error",
    ModelNotFound: "not_found_error",
    QueueFull: "unavailable_error",
    EngineNotReady: "unavailable_error",
}
"""The `error.type` of an error class and its subclasses. Defaults to "server_error"."""

STATUS_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}
"""The `error.type` of a status that no route has answered with. Defaults to that of the status's class."""


def error_document(error: LMIError, status: int) -> bytes:
    """Render `{"error":{"code":400,"message":"<cause>","type":"invalid_request_error"}}`."""
    details = LlamaCppErrorDetails(status, str(error), entry_of(error, ERROR_TYPES, "server_error"))
    return encode(LlamaCppError(details))


def status_error(status: int, message: str) -> LlamaCppError:
    """Return the error for a status that no route has answered with."""
    default = "server_error" if status >= 500 else "invalid_request_error"
    return LlamaCppError(LlamaCppErrorDetails(status, message, STATUS_TYPES.get(status, default)))
