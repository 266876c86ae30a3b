"""Examples of what Anthropic's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.anthropic import schemas

ANSWERS: Mapping[Any, object] = {
    schemas.MessageAnswer: schemas.MessageAnswer(
        id="msg_5f0c",
        type="message",
        role="assistant",
        model="my-model",
        content=[schemas.TextBlock("Deep Learning is a kind of machine learning.")],
        stop_reason="end_turn",
        stop_sequence=None,
        usage=schemas.MessageUsage(12, 0, 0, 9),
    ),
    schemas.MessageEvent: schemas.ContentBlockDelta(0, schemas.NewText("Deep")),
    schemas.TokenCount: schemas.TokenCount(12),
    schemas.AnthropicError: schemas.AnthropicError(
        schemas.ErrorDetails("invalid_request_error", "messages: must not be empty")
    ),
}
