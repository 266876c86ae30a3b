"""Shared by TEI's dialects: truncation of texts, and errors.

Source: the OpenAPI document of text-embeddings-inference 1.7. null means absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from formatters.tei.errors import error_document
from formatters.tei.schemas import EmbeddingErrorResponse
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EngineNotReady,
    InvalidBody,
    InvalidJson,
    InvalidRequest,
    LMIError,
    MalformedRequest,
    QueueFull,
    RequestTimeout,
    UnsupportedFeature,
    UnsupportedMediaType,
    entry_of,
)
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.serving.parsed import FormatterFactory, ModelFacts, Parsed

STATUS: dict[type[LMIError], int] = {
    MalformedRequest: 400,
    InvalidJson: 400,
    RequestTimeout: 408,
    UnsupportedMediaType: 415,
    InvalidBody: 422,
    UnsupportedFeature: 424,
    InvalidRequest: 413,
    QueueFull: 429,
    ClientDisconnected: 499,  # only the log shows it
    EngineNotReady: 503,
    DeadlineExceeded: 504,
}
"""HTTP status by error class or nearest base class. Defaults to 424. TEI answers every invalid value with 413."""


class TruncationFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of most bodies. With `truncate`, each input is truncated to what the model takes."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class TeiDialect(Dialect):
    """Base of the dialects. `facts` returns facts about the model once it has loaded."""

    error_type = EmbeddingErrorResponse

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget) -> None:
        self._facts = facts
        self._budget = budget

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":"<cause>","error_type":"<type>"}`."""
        return Reply(entry_of(error, STATUS, 424), error_document(error))

    def _parsed(
        self,
        payload: Payload,
        body: TruncationFields,
        ignored: tuple[str, ...],
        prompts: tuple[Prompt, ...],
        params: PoolingParams,
        formatter: FormatterFactory,
        field: str = "inputs",
    ) -> Parsed:
        """Return the request. `field` is where its inputs come from."""
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=prompts,
            pooling_params=params,
            ignored_parameters=ignored,
            **truncation(body, self._facts().capabilities),
        )
        return Parsed(request, formatter, str, partial(_check_length, field), field)


def truncation(body: TruncationFields, capabilities: Capabilities) -> dict[str, Any]:
    """Return the fields of `GenerationRequest` that say what to keep of each input."""
    side = "left" if body.truncation_direction in ("left", "Left") else "right"
    return {"truncate": capabilities.max_input_tokens if body.truncate else None, "truncation_side": side}


def _check_length(
    field: str, request: GenerationRequest, position: int, tokens: int, capabilities: Capabilities
) -> None:
    """Raise `InvalidRequest` if an input is too long."""
    most = capabilities.max_input_tokens
    if tokens > most:
        name = field if len(request.prompts) == 1 else f"{field}[{position}]"
        raise InvalidRequest(f"must have at most {most} tokens, got {tokens}; or set truncate to true", field=name)
