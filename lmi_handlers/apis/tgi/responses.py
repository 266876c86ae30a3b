"""What TGI's routes answer. Formatters write these by hand, for speed; tests hold the two together.

Source: TGI's OpenAPI document, whose names these are.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.core.json_types import Count
from lmi_handlers.text.spans import TokenSpan


class FinishReason(enum.Enum):
    """Why a text ends: too many tokens, the model's end of sequence, or a stop string."""

    length = "length"
    eos_token = "eos_token"  # noqa: S105
    stop_sequence = "stop_sequence"


class Token(msgspec.Struct):
    """A generated token, its logprob null where it is not a number."""

    id: Count
    text: str
    logprob: float | None
    special: bool


class PrefillToken(msgspec.Struct):
    """A token of the prompt."""

    id: Count
    text: str
    logprob: float | None


class BestOfSequence(msgspec.Struct):
    """One of the answers of `best_of` that is not the best."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class Details(msgspec.Struct):
    """What `details` asks for."""

    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET
    top_tokens: list[list[Token]] | UnsetType = UNSET


class GenerateResponse(msgspec.Struct):
    """A whole answer."""

    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(msgspec.Struct):
    """What `details` asks for, in a stream."""

    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None
    input_length: Count


class StreamResponse(msgspec.Struct):
    """An event: a token. The last one has the text, and the details."""

    index: Count
    token: Token
    generated_text: str | None
    details: StreamDetails | None
    top_tokens: list[Token] | UnsetType = UNSET


class ErrorResponse(msgspec.Struct):
    """What is wrong. A stream that has begun ends with an event like this."""

    error: str
    error_type: str


class ChatTokenizeResponse(msgspec.Struct, frozen=True):
    """The answer of `/chat_tokenize`."""

    tokenize_response: list[TokenSpan]
    templated_text: str


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/info`, in TGI's order, and then what only older versions of it have, which is always sent here.

    `version` is this server's. `waiting_served_ratio` and `max_waiting_tokens` are always 0: waiting requests do not delay
    running ones.
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
