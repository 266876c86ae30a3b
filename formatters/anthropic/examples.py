"""Examples of what Anthropic's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.anthropic import responses

ANSWERS: Mapping[Any, object] = {
    responses.MessageAnswer: responses.MessageAnswer(
        id="msg_5f0c",
        type="message",
        role="assistant",
        model="my-model",
        content=[responses.TextBlock("Deep Learning is a kind of machine learning.")],
        stop_reason="end_turn",
        stop_sequence=None,
        usage=responses.MessageUsage(12, 0, 0, 9),
    ),
    responses.MessageEvent: responses.ContentBlockDelta(0, responses.NewText("Deep")),
    responses.TokenCount: responses.TokenCount(12),
    responses.AnthropicError: responses.AnthropicError(
        responses.ErrorDetails("invalid_request_error", "messages: must not be empty")
    ),
}
