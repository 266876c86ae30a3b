"""The answers of MindIE's TGI interface.

Source: MindIE's documentation of that interface.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from formatters.base import Response
from formatters.tgi.schemas import Token
from lmi_handlers.core.json_types import Count
from lmi_handlers.core.outputs import FinishReason


class MindiePrefillToken(Response):
    """A prompt token."""

    id: Count
    logprob: float | None
    text: str


class MindieToken(Response):
    """A generated token of a document. Those of events have TGI's order."""

    id: Count
    logprob: float | None
    special: bool
    text: str


class MindieDetails(Response):
    """Included if the request sets `details`."""

    finish_reason: FinishReason
    generated_tokens: Count
    prefill: list[MindiePrefillToken]
    seed: Count | None
    tokens: list[MindieToken]


class MindieResponse(Response, kw_only=True):
    """The complete answer, if it is not streamed."""

    details: MindieDetails | UnsetType = UNSET
    generated_text: str
    continuation: str | UnsetType = UNSET


class MindieStreamDetails(Response):
    """Included in the last event of a stream if the request sets `details`, or if there is a `continuation`, as in TGI's."""

    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None
    truncated: str | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class MindieStreamResponse(Response):
    """One event per token. The last one also has the generated text and the details."""

    token: Token
    generated_text: str | None
    details: MindieStreamDetails | None
