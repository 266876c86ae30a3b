"""The answers of Aleph Alpha's routes.

Source: Aleph Alpha's API reference.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from formatters.base import Response
from formatters.openai.schemas import ChatCompletionChoice, Usage
from lmi_handlers.core.json_types import Count


class AlephAlphaChunk(Response):
    """One event of a stream, as in OpenAI's API. Only the last event of each choice has the fingerprint."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    system_fingerprint: str | None
    choices: list[ChatCompletionChoice]
    usage: Usage | None


class AlephAlphaError(Response):
    """An error: its cause and its kind."""

    error: str
    code: str


# Aleph Alpha's text completions

AlephAlphaFinishReason = Literal["end_of_text", "stop_sequence_reached", "maximum_tokens", "content_filter"]


class _Part(Response, kw_only=True):
    index: Count
    log_probs: list[dict[str, float]] | UnsetType = UNSET
    completion: str
    raw_completion: str | UnsetType = UNSET
    completion_tokens: list[str] | UnsetType = UNSET


class AlephAlphaCompletion(_Part, kw_only=True):
    """One of the completions. `log_probs` maps each token's text, and its most likely alternatives, to logprobs."""

    finish_reason: AlephAlphaFinishReason


class AlephAlphaCompletions(Response):
    """The complete answer, if it is not streamed.

    Counts cover all generated completions, with the prompt once for each. A request with `continuation` goes on with a text
    that a time limit has ended.
    """

    completions: list[AlephAlphaCompletion]
    model_version: str
    num_tokens_prompt_total: Count
    num_tokens_generated: Count
    continuation: str | UnsetType = UNSET


class AlephAlphaStreamChunk(_Part, tag_field="type", tag="stream_chunk"):
    """The new part of one of the completions, with the same details."""


class AlephAlphaStreamSummary(Response, tag_field="type", tag="stream_summary"):
    """Marks the end of one of the completions. `truncated` names the option that has ended it before its time.

    A request with `continuation` goes on with it.
    """

    index: Count
    model_version: str
    finish_reason: AlephAlphaFinishReason
    truncated: str | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class AlephAlphaCompletionSummary(Response, tag_field="type", tag="completion_summary"):
    """Marks the end of all completions and of the stream."""

    num_tokens_prompt_total: Count
    num_tokens_generated: Count


# Aleph Alpha's embeddings


class SemanticEmbedding(Response):
    """The vector of a prompt."""

    model_version: str
    embedding: list[float]
    num_tokens_prompt_total: Count


class SemanticEmbeddings(Response):
    """The vectors of several prompts, in their order."""

    model_version: str
    embeddings: list[list[float]]
    num_tokens_prompt_total: Count
