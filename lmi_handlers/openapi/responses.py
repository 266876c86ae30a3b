"""What TGI's, LMI's and SageMaker's routes answer. Formatters write these by hand, for speed; tests hold the two together.

Sources: TGI's OpenAPI document, whose names these are; LMI's output schema document; DJL Serving's front end.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.text.spans import TokenSpan

Count = Annotated[int, msgspec.Meta(ge=0)]

# TGI


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


# MindIE


class MindieDetails(msgspec.Struct):
    """What `details` asks for."""

    finish_reason: FinishReason
    generated_tokens: Count
    prefill: list[PrefillToken]
    seed: Count | None
    tokens: list[Token]


class MindieResponse(msgspec.Struct):
    """A whole answer."""

    generated_text: str
    details: MindieDetails | UnsetType = UNSET


class MindieStreamDetails(msgspec.Struct):
    """What `details` asks for, in a stream."""

    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None


class MindieStreamResponse(msgspec.Struct):
    """An event: a token. The last one has the text, and the details."""

    token: Token
    generated_text: str | None
    details: MindieStreamDetails | None


# LMI

LmiFinishReason = Literal["length", "eos_token", "stop_sequence", "error"]


class LmiToken(msgspec.Struct):
    """A token. The last record of a stream that fails has one that is none, with `error_msg` and the id -1."""

    id: Annotated[int, msgspec.Meta(ge=-1)]
    text: str
    log_prob: float | None
    special_token: bool | UnsetType = UNSET
    error_msg: str | UnsetType = UNSET


class LmiSequence(msgspec.Struct):
    """One of the answers of `n` that is not the best."""

    finish_reason: LmiFinishReason
    generated_tokens: Count
    tokens: list[LmiToken]
    generated_text: str
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET


class LmiDetails(msgspec.Struct):
    """What `details` asks for."""

    finish_reason: LmiFinishReason
    generated_tokens: Count
    inputs: str
    tokens: list[LmiToken]
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    best_of_sequences: list[LmiSequence] | UnsetType = UNSET


class LmiResponse(msgspec.Struct):
    """The answer to one prompt."""

    generated_text: str
    details: LmiDetails | UnsetType = UNSET


class LmiStreamDetails(msgspec.Struct):
    """What `details` asks for, in a stream; of one that fails, `finish_reason` alone."""

    finish_reason: LmiFinishReason
    generated_tokens: Count | UnsetType = UNSET
    inputs: str | UnsetType = UNSET
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET


class LmiRecord(msgspec.Struct):
    """A line or event of a stream: a token. The last one has the text, and the details."""

    token: LmiToken
    generated_text: str | UnsetType = UNSET
    details: LmiStreamDetails | UnsetType = UNSET


class LmiError(msgspec.Struct):
    """What is wrong, and the status once more."""

    error: str
    code: int


class DynamicBatchText(msgspec.Struct):
    """The answer to one prompt of a dynamic batch."""

    generated_text: str


class DynamicBatchOutputs(msgspec.Struct):
    """A line of a dynamic batch's stream: what is new, an entry a prompt."""

    outputs: list[str]


class DynamicBatchError(msgspec.Struct):
    """What is wrong, as LMI says it for dynamic batches."""

    code: int
    message: str
    error: str


# The front end


class FrontEndError(msgspec.Struct):
    """What the router refuses, in the shape of DJL's front end."""

    code: int
    type: str
    message: str


class Health(msgspec.Struct):
    """A model's state, and while it is not healthy what it is waiting for."""

    status: str
    phase: str | UnsetType = UNSET
