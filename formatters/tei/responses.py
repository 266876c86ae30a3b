"""What TEI's routes answer. Source: the OpenAPI document of text-embeddings-inference 1.7."""

from __future__ import annotations

from typing import Literal

from formatters.base import Response

ErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer"]


class EmbeddingErrorResponse(Response):
    """An error: its cause, and its kind."""

    error: str
    error_type: ErrorType
