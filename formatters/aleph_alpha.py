r"""Aleph Alpha's chat completions: like OpenAI's, but a stream has the fingerprint only in each choice's last chunk.

    document   {"id":"chatcmpl-1","object":"chat.completion",...}
    stream     data: {"id":"chatcmpl-1",...,"system_fingerprint":null,"choices":[{"index":0,"delta":{...},...}],"usage":null}\n\n

Source: Aleph Alpha's API reference, "Chat".
"""

from __future__ import annotations

import msgspec

from formatters.openai import SYSTEM_FINGERPRINT
from formatters.openai_chat import ChatSseFormatter
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
    return msgspec.json.encode({"error": str(error), "code": code})


class AlephAlphaSseFormatter(ChatSseFormatter):
    """One event for each update to a choice, then `[DONE]`."""

    def head_of(self, reason: str) -> str:
        """Return the start of a chunk. It has the fingerprint only if there is a finish reason."""
        return self.head if reason != "null" else self.head.replace(f'"{SYSTEM_FINGERPRINT}"', "null", 1)

    def error(self, error: LMIError) -> bytes:
        """Return the error event and the end of the stream."""
        return self.record(error_document(error)) + self.end()
