"""TEI's error object. Source: the OpenAPI document of text-embeddings-inference 1.7."""

from __future__ import annotations

from formatters.base import encode
from formatters.tei.schemas import EmbeddingErrorResponse, ErrorType
from lmi_handlers.core.errors import (
    EngineNotReady,
    InvalidRequest,
    LMIError,
    QueueFull,
    UnsupportedFeature,
    entry_of,
)

ERROR_TYPES: dict[type[LMIError], ErrorType] = {
    InvalidRequest: "Validation",
    UnsupportedFeature: "Backend",
    QueueFull: "Overloaded",
    EngineNotReady: "Unhealthy",
}
"""The `error_type` of an error class and its subclasses. Defaults to "Backend"."""


def error_document(error: LMIError) -> bytes:
    """Render `{"error":"<cause>","error_type":"Validation"}`."""
    return encode(EmbeddingErrorResponse(str(error), entry_of(error, ERROR_TYPES, "Backend")))
