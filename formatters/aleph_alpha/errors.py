"""Aleph Alpha's error object. Source: Aleph Alpha's API reference."""

from __future__ import annotations

from formatters.aleph_alpha.schemas import AlephAlphaError
from formatters.base import encode
from lmi_handlers.core.errors import (
    DeadlineExceeded,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
    UnsupportedFeature,
    entry_of,
)

CODES: dict[type[LMIError], str] = {
    UnsupportedFeature: "UNSUPPORTED_PARAMETER",
    InvalidRequest: "INVALID_REQUEST",
    ModelNotFound: "UNKNOWN_MODEL",
    QueueFull: "QUEUE_FULL",
    EngineNotReady: "BUSY",
    DeadlineExceeded: "TASK_TIMEOUT",
}
"""The `code` of an error class and its subclasses. Defaults to "INTERNAL"."""


def error_document(error: LMIError) -> bytes:
    """Render `{"error":"<cause>","code":"INVALID_REQUEST"}`."""
    return encode(AlephAlphaError(str(error), entry_of(error, CODES, "INTERNAL")))
