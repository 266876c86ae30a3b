"""Response bodies of MindIE's TGI interface. The formatters write them by hand, for speed; tests keep the two in sync.

Source: MindIE's documentation of that interface.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from formatters.tgi.responses import FinishReason, PrefillToken, Token
from lmi_handlers.core.json_types import Count


class MindieDetails(msgspec.Struct):
    """Included if the request sets `details`."""

    finish_reason: FinishReason
    generated_tokens: Count
    prefill: list[PrefillToken]
    seed: Count | None
    tokens: list[Token]


class MindieResponse(msgspec.Struct):
    """The complete answer, if it is not streamed."""

    generated_text: str
    details: MindieDetails | UnsetType = UNSET


class MindieStreamDetails(msgspec.Struct):
    """Included in the last event of a stream if the request sets `details`."""

    finish_reason: FinishReason
    generated_tokens: Count
    seed: Count | None


class MindieStreamResponse(msgspec.Struct):
    """One event per token. The last one also has the generated text and the details."""

    token: Token
    generated_text: str | None
    details: MindieStreamDetails | None
