"""Examples of what Aleph Alpha's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.aleph_alpha import responses
from formatters.openai.responses import ChatCompletionChoice, ChatCompletionDelta

_TEXT = " Deep Learning is a kind of machine learning."

ANSWERS: Mapping[Any, object] = {
    responses.AlephAlphaChunk: responses.AlephAlphaChunk(
        id="chatcmpl-5f0c",
        object="chat.completion.chunk",
        created=1767225600,
        model="my-model",
        system_fingerprint=None,
        choices=[ChatCompletionChoice(0, ChatCompletionDelta(content="Deep"), None, None)],
        usage=None,
    ),
    responses.AlephAlphaError: responses.AlephAlphaError("prompt must not be empty", "BAD_REQUEST"),
    responses.AlephAlphaCompletions: responses.AlephAlphaCompletions(
        [responses.AlephAlphaCompletion(index=0, completion=_TEXT, finish_reason="end_of_text")], "my-model", 6, 9
    ),
    responses.AlephAlphaStreamChunk: responses.AlephAlphaStreamChunk(index=0, completion=" Deep"),
    responses.AlephAlphaStreamSummary: responses.AlephAlphaStreamSummary(0, "my-model", "end_of_text"),
    responses.AlephAlphaCompletionSummary: responses.AlephAlphaCompletionSummary(6, 9),
    responses.SemanticEmbedding: responses.SemanticEmbedding("my-model", [0.0125, -0.0371, 0.0518], 6),
    responses.SemanticEmbeddings: responses.SemanticEmbeddings("my-model", [[0.0125, -0.0371, 0.0518]], 6),
}
"""By type."""
