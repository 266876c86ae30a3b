"""Aleph Alpha's error object. Source: Aleph Alpha's API reference."""

from __future__ import annotations

from formatters.aleph_alpha.responses import AlephAlphaError
from formatters.base import encode
from lmi_handlers.core.errors import (
    DeadlineExceeded,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
    UnsupportedFeature,
)

CODES: dict[type[LMIError], str] = {
    UnsupportedFeature: "UNSUPPORTED_PARAMETER",
    InvalidRequest: "INVALID_REQUEST",
    ModelNotFound: "UNKNOWN_MODEL",
    QueueFull: "QUEUE_FULL",
    EngineNotReady: "BUSY",
    DeadlineExceeded: "TASK_TIMEOUT",
}
"""The `code` for each error class, inherited by its subclasses. Any other error is INTERNAL."""


def error_document(error: LMIError) -> bytes:
    """Render `{"error":"<cause>","code":"INVALID_REQUEST"}`."""
    code = next((CODES[ancestor] for ancestor in type(error).__mro__ if ancestor in CODES), "INTERNAL")
    return encode(AlephAlphaError(str(error), code))
