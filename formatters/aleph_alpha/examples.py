"""Examples of what Aleph Alpha's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.aleph_alpha import schemas
from formatters.openai.schemas import ChatCompletionChoice, ChatCompletionDelta

_TEXT = " Deep Learning is a kind of machine learning."

ANSWERS: Mapping[Any, object] = {
    schemas.AlephAlphaChunk: schemas.AlephAlphaChunk(
        id="chatcmpl-5f0c",
        object="chat.completion.chunk",
        created=1767225600,
        model="my-model",
        system_fingerprint=None,
        choices=[ChatCompletionChoice(0, ChatCompletionDelta(content="Deep"), None, None)],
        usage=None,
    ),
    schemas.AlephAlphaError: schemas.AlephAlphaError("prompt must not be empty", "BAD_REQUEST"),
    schemas.AlephAlphaCompletions: schemas.AlephAlphaCompletions(
        [schemas.AlephAlphaCompletion(index=0, completion=_TEXT, finish_reason="end_of_text")], "my-model", 6, 9
    ),
    schemas.AlephAlphaStreamChunk: schemas.AlephAlphaStreamChunk(index=0, completion=" Deep"),
    schemas.AlephAlphaStreamSummary: schemas.AlephAlphaStreamSummary(0, "my-model", "end_of_text"),
    schemas.AlephAlphaCompletionSummary: schemas.AlephAlphaCompletionSummary(6, 9),
    schemas.SemanticEmbedding: schemas.SemanticEmbedding("my-model", [0.0125, -0.0371, 0.0518], 6),
    schemas.SemanticEmbeddings: schemas.SemanticEmbeddings("my-model", [[0.0125, -0.0371, 0.0518]], 6),
}
"""By type."""
