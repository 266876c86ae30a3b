"""The answers of LMI's routes.

Source: LMI's output schema document, and DJL Serving 0.31.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import Response
from lmi_handlers.core.json_types import Count
from lmi_handlers.core.outputs import FinishReason


class LmiToken(Response):
    """A token. The last record of a failed stream has a placeholder with `error_msg` and the id -1."""

    id: Annotated[int, msgspec.Meta(ge=-1)]
    text: str
    log_prob: float | None
    special_token: bool | UnsetType = UNSET
    error_msg: str | UnsetType = UNSET


class LmiSequence(Response, kw_only=True):
    """One of the `n` answers other than the best."""

    finish_reason: FinishReason
    generated_tokens: Count
    tokens: list[LmiToken]
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    generated_text: str


class LmiDetails(Response, kw_only=True):
    """Included if the request sets `details`."""

    finish_reason: FinishReason
    generated_tokens: Count
    inputs: str
    tokens: list[LmiToken]
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET


class LmiBestOfDetails(Response, kw_only=True):
    """The same, in another order, and the other sequences."""

    inputs: str
    finish_reason: FinishReason
    generated_tokens: Count
    tokens: list[LmiToken]
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    best_of_sequences: list[LmiSequence]


class LmiResponse(Response):
    """The answer to one prompt. A request with its `continuation` goes on with a text that a time limit has ended."""

    generated_text: str
    details: LmiDetails | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class LmiBestOfResponse(Response):
    """The answer to one prompt if `n` is more than 1: the best of `n` sequences. The others are in the details."""

    generated_text: str
    details: LmiBestOfDetails


class LmiStreamDetails(Response):
    """Included in the last record of a stream if the request sets `details`.

    A failed stream only has `finish_reason`. `truncated` names the option that has ended the text before its time, and a
    request with `continuation` goes on with that text. Then the details are there even if the request does not set
    `details`, with nothing but these.
    """

    finish_reason: FinishReason
    generated_tokens: Count | UnsetType = UNSET
    inputs: str | UnsetType = UNSET
    prefill: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    truncated: str | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class LmiRecord(Response):
    """One line or event of a stream per token. The last one also has the generated text and the details."""

    token: LmiToken
    generated_text: str | UnsetType = UNSET
    details: LmiStreamDetails | UnsetType = UNSET


class LmiError(Response):
    """An error. `code` repeats the HTTP status."""

    error: str
    code: int


class DynamicBatchText(Response):
    """The answer to one prompt of a dynamic batch."""

    generated_text: str
    continuation: str | UnsetType = UNSET


class DynamicBatchOutputs(Response):
    """One line of a dynamic batch's stream. `outputs` has the new text, one entry per prompt."""

    outputs: list[str]
    continuation: str | UnsetType = UNSET


class DynamicBatchError(Response):
    """An error, in LMI's format for dynamic batches."""

    code: int
    message: str
    error: str
