"""What MindIE's TGI interface answers. Formatters write these by hand, for speed; tests hold the two together.

Source: MindIE's documentation of that interface.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.apis.tgi.responses import FinishReason, PrefillToken, Token
from lmi_handlers.core.json_types import Count


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
