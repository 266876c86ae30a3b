r"""Aleph Alpha's chat completions: like OpenAI's, but a stream has the fingerprint only in each choice's last chunk.

    document   {"id":"chatcmpl-1","object":"chat.completion",...}
    stream     data: {"id":"chatcmpl-1",...,"system_fingerprint":null,"choices":[{"index":0,"delta":{...},...}],"usage":null}\n\n

The usage has no details. Source: Aleph Alpha's API reference, "Chat".
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from formatters.aleph_alpha.errors import error_document
from formatters.aleph_alpha.schemas import AlephAlphaChunk
from formatters.openai.base import SYSTEM_FINGERPRINT
from formatters.openai.chat import ChatJsonFormatter, ChatSseFormatter
from formatters.openai.schemas import ChatCompletionChoice, Usage
from lmi_handlers.core.errors import LMIError


class AlephAlphaJsonFormatter(ChatJsonFormatter):
    """One document at the end."""

    def usage(self, cached_tokens: int | None = None) -> Usage:  # noqa: ARG002  not in Aleph Alpha's format
        return _without_details(super().usage())


class AlephAlphaSseFormatter(ChatSseFormatter):
    """One event for each update to a choice, then `[DONE]`."""

    def usage(self, cached_tokens: int | None = None) -> Usage:  # noqa: ARG002  not in Aleph Alpha's format
        return _without_details(super().usage())

    def chunk(
        self,
        choices: list[ChatCompletionChoice],
        usage: Usage | None,
        prompt_ids: list[int] | UnsetType = UNSET,  # noqa: ARG002  not in Aleph Alpha's format
    ) -> AlephAlphaChunk:
        """Return one object of the stream. The fingerprint is in each choice's last one and in the usage."""
        options = self.options
        fingerprint = SYSTEM_FINGERPRINT if not choices or choices[0].finish_reason else None
        return AlephAlphaChunk(
            self.id, "chat.completion.chunk", options.created, options.model, fingerprint, choices, usage
        )

    def error(self, error: LMIError) -> bytes:
        return self.frame(error_document(error)) + self.end


def _without_details(usage: Usage) -> Usage:
    """Return the same numbers without their details."""
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
