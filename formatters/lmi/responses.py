"""Response bodies of LMI's routes. The formatters write them by hand, for speed; tests keep the two in sync.

Source: LMI's output schema document, and DJL Serving 0.31.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.core.json_types import Count

LmiFinishReason = Literal["length", "eos_token", "stop_sequence", "error"]


class LmiToken(msgspec.Struct):
    """A token. The last record of a failed stream has a placeholder with `error_msg` and the id -1."""

    id: Annotated[int, msgspec.Meta(ge=-1)]
    text: str
    log_prob: float | None
    special_token: bool | UnsetType = UNSET
    error_msg: str | UnsetType = UNSET


class LmiSequence(msgspec.Struct):
    """One of the `n` answers other than the best."""

    finish_reason: LmiFinishReason
    generated_tokens: Count
    tokens: list[LmiToken]
    generated_text: str
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET


class LmiDetails(msgspec.Struct):
    """Included if the request sets `details`."""

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
    """Included in the last record of a stream if the request sets `details`.

    A failed stream only has `finish_reason`.
    """

    finish_reason: LmiFinishReason
    generated_tokens: Count | UnsetType = UNSET
    inputs: str | UnsetType = UNSET
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET


class LmiRecord(msgspec.Struct):
    """One line or event of a stream per token. The last one also has the generated text and the details."""

    token: LmiToken
    generated_text: str | UnsetType = UNSET
    details: LmiStreamDetails | UnsetType = UNSET


class LmiError(msgspec.Struct):
    """An error. `code` repeats the HTTP status."""

    error: str
    code: int


class DynamicBatchText(msgspec.Struct):
    """The answer to one prompt of a dynamic batch."""

    generated_text: str


class DynamicBatchOutputs(msgspec.Struct):
    """One line of a dynamic batch's stream. `outputs` has the new text, one entry per prompt."""

    outputs: list[str]


class DynamicBatchError(msgspec.Struct):
    """An error, in LMI's format for dynamic batches."""

    code: int
    message: str
    error: str
