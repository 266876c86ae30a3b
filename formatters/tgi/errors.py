"""TGI's error object. Source: responses of the text-generation-inference 3.3 router."""

from __future__ import annotations

import msgspec

from formatters.base import encode
from formatters.tgi.schemas import ErrorResponse
from lmi_handlers.core.errors import (
    EngineNotReady,
    InvalidBody,
    InvalidChat,
    InvalidJson,
    InvalidRequest,
    LMIError,
    PayloadTooLarge,
    QueueFull,
    UnsupportedMediaType,
    entry_of,
)


class ErrorKind(msgspec.Struct, frozen=True):
    """The rendering of an error class: its `error_type`, and a prefix for the message or a text that replaces it."""

    error_type: str
    prefix: str = ""
    instead: str | None = None


ERROR_KINDS: dict[type[LMIError], ErrorKind] = {
    InvalidJson: ErrorKind("validation"),
    InvalidBody: ErrorKind("validation", "Failed to deserialize the JSON body into the target type: "),
    PayloadTooLarge: ErrorKind("validation"),
    UnsupportedMediaType: ErrorKind("validation"),
    InvalidChat: ErrorKind("template_error", "Template error: "),
    InvalidRequest: ErrorKind("validation", "Input validation error: "),
    QueueFull: ErrorKind("overloaded", instead="Model is overloaded"),
    EngineNotReady: ErrorKind("healthcheck"),
}
"""The kind of an error class and its subclasses."""

FAILED = ErrorKind("generation", "Request failed during generation: ")
"""The kind of all other errors."""


def error_document(error: LMIError) -> bytes:
    """Render `{"error":"<cause>","error_type":"<type>"}`."""
    kind = entry_of(error, ERROR_KINDS, FAILED)
    return encode(ErrorResponse(kind.instead or f"{kind.prefix}{error}", kind.error_type))
