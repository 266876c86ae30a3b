r"""Aleph Alpha's chat completions: like OpenAI's, but a stream has the fingerprint only in each choice's last chunk.

    document   {"id":"chatcmpl-1","object":"chat.completion",...}
    stream     data: {"id":"chatcmpl-1",...,"system_fingerprint":null,"choices":[{"index":0,"delta":{...},...}],"usage":null}\n\n

Source: Aleph Alpha's API reference, "Chat".
"""

from __future__ import annotations

from formatters.aleph_alpha.errors import error_document
from formatters.openai.base import SYSTEM_FINGERPRINT
from formatters.openai.chat import ChatSseFormatter
from lmi_handlers.core.errors import LMIError


class AlephAlphaSseFormatter(ChatSseFormatter):
    """One event for each update to a choice, then `[DONE]`."""

    def head_of(self, reason: str) -> str:
        """Return the start of a chunk. It has the fingerprint only if there is a finish reason."""
        return self.head if reason != "null" else self.head.replace(f'"{SYSTEM_FINGERPRINT}"', "null", 1)

    def error(self, error: LMIError) -> bytes:
        """Return the error event and the end of the stream."""
        return self.record(error_document(error)) + self.end()
