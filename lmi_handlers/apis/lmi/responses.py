"""What LMI's routes answer. Formatters write these by hand, for speed; tests hold the two together.

Source: LMI's output schema document, and DJL Serving 0.31.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.core.json_types import Count

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
