"""The answers of TGI's routes.

Source: TGI's OpenAPI document, including the names.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from formatters.base import Response
from lmi_handlers.core.json_types import Count
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.text.spans import TokenSpan


class Token(Response):
    """A generated token. `logprob` is null if it is not a number."""

    id: Count
    text: str
    logprob: float | None
    special: bool


class PrefillToken(Response):
    """A prompt token."""

    id: Count
    text: str
    logprob: float | None


class BestOfSequence(Response):
    """One of the other sequences that `best_of` generated."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class Details(Response):
    """Included if the request sets `details`."""

    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET
    top_tokens: list[list[Token]] | UnsetType = UNSET


class GenerateResponse(Response):
    """The complete answer, if it is not streamed.

    A request with its `continuation`, which TGI does not have, goes on with a text that a time limit has ended.
    """

    generated_text: str
    details: Details | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class StreamDetails(Response):
    """Included in the last event of a stream if the request sets `details`, or if it has a `continuation`.

    `truncated`, which TGI does not have, names the option that has ended the text before its time. A request with
    `continuation` goes on with that text.
    """

    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None
    input_length: Count
    truncated: str | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class StreamResponse(Response, kw_only=True):
    """One event per token. The last one also has the generated text and the details."""

    index: Count
    token: Token
    top_tokens: list[Token] | UnsetType = UNSET
    generated_text: str | None
    details: StreamDetails | None


class ErrorResponse(Response):
    """An error. If it occurs during a stream, it is sent as the last event."""

    error: str
    error_type: str


class ChatTokenizeResponse(Response):
    """The response of `/chat_tokenize`."""

    tokenize_response: list[TokenSpan]
    templated_text: str


class Info(Response, kw_only=True):
    """The response of `/info`: TGI's fields in their order, then those of older TGI versions, always included.

    `version` is the version of this server. `waiting_served_ratio` and `max_waiting_tokens` are always 0, because
    waiting requests do not delay running ones.
    """

    model_id: str
    model_sha: str | None
    model_pipeline_tag: str | None
    max_concurrent_requests: Count
    max_best_of: Count
    max_stop_sequences: Count
    max_input_tokens: Count
    max_total_tokens: Count
    validation_workers: Count
    max_client_batch_size: Count
    router: str
    version: str
    sha: str | None
    docker_label: str | None
    model_dtype: str | UnsetType | None = UNSET
    model_device_type: str | UnsetType | None = UNSET
    max_input_length: Count | UnsetType = UNSET
    waiting_served_ratio: float | UnsetType = UNSET
    max_batch_total_tokens: Count | UnsetType = UNSET
    max_waiting_tokens: Count | UnsetType = UNSET
