"""What Aleph Alpha's routes answer.

Source: Aleph Alpha's API reference.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.apis.openai.responses import ChatCompletionChoice, Usage
from lmi_handlers.core.json_types import Count


class AlephAlphaChunk(msgspec.Struct):
    """OpenAI's event, the fingerprint in each choice's last one alone."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    system_fingerprint: str | None
    choices: list[ChatCompletionChoice]
    usage: Usage | None


class AlephAlphaError(msgspec.Struct):
    """What is wrong, and what kind of mistake that is."""

    error: str
    code: str


# Aleph Alpha's text completions

AlephAlphaFinishReason = Literal["end_of_text", "stop_sequence_reached", "maximum_tokens", "content_filter"]


class AlephAlphaCompletion(msgspec.Struct):
    """One of the answers. `log_probs` has each token's logprob and its likeliest alternatives', by their texts."""

    index: Count
    completion: str
    finish_reason: AlephAlphaFinishReason
    log_probs: list[dict[str, float]] | UnsetType = UNSET
    raw_completion: str | UnsetType = UNSET
    completion_tokens: list[str] | UnsetType = UNSET


class AlephAlphaCompletions(msgspec.Struct):
    """A whole answer. Tokens are counted over all that was generated, the prompt's once for each."""

    completions: list[AlephAlphaCompletion]
    model_version: str
    num_tokens_prompt_total: Count
    num_tokens_generated: Count


class AlephAlphaStreamChunk(msgspec.Struct, tag_field="type", tag="stream_chunk"):
    """What is new of one of the answers, with the same details."""

    index: Count
    completion: str
    log_probs: list[dict[str, float]] | UnsetType = UNSET
    raw_completion: str | UnsetType = UNSET
    completion_tokens: list[str] | UnsetType = UNSET


class AlephAlphaStreamSummary(msgspec.Struct, tag_field="type", tag="stream_summary"):
    """The end of one of the answers."""

    index: Count
    model_version: str
    finish_reason: AlephAlphaFinishReason


class AlephAlphaCompletionSummary(msgspec.Struct, tag_field="type", tag="completion_summary"):
    """The end of all answers, and of the stream."""

    num_tokens_prompt_total: Count
    num_tokens_generated: Count
