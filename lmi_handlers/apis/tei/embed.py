"""TEI's `/embed`, which huggingface_hub's `feature_extraction` also calls, at `/`.

Sources: the OpenAPI document of text-embeddings-inference 1.7, and huggingface_hub for `dimensions` and
`encoding_format`. null means absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from formatters.tei.embed import EmbedFormatter
from formatters.tei.errors import error_document
from formatters.tei.responses import EmbeddingErrorResponse
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.embedding_prompts import embedding_prompts
from lmi_handlers.apis.openai.body import Prompts, num_prompts, split_prompts
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
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.serving.parsed import ModelFacts, Parsed

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


class EmbedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/embed`. `prompt_name` is one of the model's own prompts."""

    inputs: Prompts
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None
    prompt_name: str | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    encoding_format: Literal["float"] | None = None


class EmbedDialect(Dialect):
    """Dialect of `/embed`. `normalize` is its default."""

    error_type = EmbeddingErrorResponse

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, normalize: bool) -> None:
        self._facts = facts
        self._budget = budget
        self._normalize = normalize

    def parse(self, payload: Payload) -> Parsed:
        ignored = unknown_names(payload.fields, EmbedBody, nulls=False)
        body = decode_typed(payload.data, EmbedBody)
        self._budget.check_sequences("inputs", num_prompts(body.inputs), 1)
        facts = self._facts()
        contents = split_prompts(body.inputs, "inputs")
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=embedding_prompts(
                contents, payload.adapter, prefix=_prompt(facts, body.prompt_name), field="prompt_name"
            ),
            pooling_params=PoolingParams(
                normalize=self._normalize if body.normalize is None else body.normalize, dimensions=body.dimensions
            ),
            truncate=facts.capabilities.max_input_tokens if body.truncate else None,
            truncation_side="left" if body.truncation_direction in ("left", "Left") else "right",
            ignored_parameters=ignored,
        )
        return Parsed(request, EmbedFormatter, str, _check_length)

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":"<cause>","error_type":"<type>"}`."""
        return Reply(entry_of(error, STATUS, 424), error_document(error))


def _prompt(facts: ModelFacts, name: str | None) -> str:
    if name is not None and name not in facts.prompts:
        known = ", ".join(facts.prompts) or "none"
        raise InvalidRequest(f"must be the name of one of the model's prompts ({known})", field="prompt_name")
    return "" if name is None else facts.prompts[name]


def _check_length(request: GenerationRequest, position: int, tokens: int, capabilities: Capabilities) -> None:
    """Raise `InvalidRequest` if an input is too long."""
    most = capabilities.max_input_tokens
    if tokens > most:
        field = "inputs" if len(request.prompts) == 1 else f"inputs[{position}]"
        raise InvalidRequest(f"must have at most {most} tokens, got {tokens}; or set truncate to true", field=field)
