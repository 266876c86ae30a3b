"""Aleph Alpha's embeddings: `POST /semantic_embed` and `/batch_semantic_embed`.

Source: aleph-alpha-client 11.5. null means absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec

from formatters.aleph_alpha.embedding import (
    BatchEmbeddingFormatter,
    ModelEmbeddingFormatter,
    SemanticEmbeddingFormatter,
)
from formatters.aleph_alpha.schemas import AlephAlphaError
from lmi_handlers.apis.aleph_alpha.chat import error_response
from lmi_handlers.apis.aleph_alpha.completion import AlephAlphaPrompt, joined_prompt
from lmi_handlers.apis.base import Payload, Reply
from lmi_handlers.apis.openai.dialect import OpenAIDialect, check_length
from lmi_handlers.apis.pooling_prompts import embedding_prompts
from lmi_handlers.core.errors import InvalidRequest, LMIError
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.serving.parsed import Parsed


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both routes. Fields from `hosting` on are ignored.

    A `query` or a `document` gets the model's own prompt of that name, if it has one.
    """

    model: str
    representation: Literal["symmetric", "document", "query"]
    compress_to_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    normalize: bool | None = None

    hosting: str | None = None
    contextual_control_threshold: float | None = None
    control_log_additive: bool | None = None


class SemanticEmbedBody(_Body, frozen=True, kw_only=True):
    """The body of `/semantic_embed`."""

    prompt: AlephAlphaPrompt


class BatchSemanticEmbedBody(_Body, frozen=True, kw_only=True):
    """The body of `/batch_semantic_embed`."""

    prompts: list[AlephAlphaPrompt]


class _EmbedDialect(OpenAIDialect):
    error_type = AlephAlphaError

    def _parsed(
        self,
        payload: Payload,
        body: _Body,
        ignored: tuple[str, ...],
        contents: Sequence[str | tuple[int, ...]],
        formatter: type[ModelEmbeddingFormatter],
        field: str,
    ) -> Parsed:
        facts = self._facts()
        adapter = self._adapter(body.model, payload)
        prefix = "" if body.representation == "symmetric" else facts.prompts.get(body.representation, "")
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=embedding_prompts(contents, adapter, prefix=prefix, field="representation"),
            pooling_params=PoolingParams(normalize=bool(body.normalize), dimensions=body.compress_to_size),
            ignored_parameters=ignored,
        )
        model = adapter or facts.model_id
        return Parsed(request, partial(formatter, model_version=model), _alias, partial(check_length, field), field)

    def error(self, error: LMIError) -> Reply:
        return error_response(error)


class SemanticEmbedDialect(_EmbedDialect):
    """Dialect of `/semantic_embed`: one prompt."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, SemanticEmbedBody)
        if not isinstance(body.prompt, str):
            self._budget.check_parts("prompt", body.prompt)
        contents = [joined_prompt(body.prompt, "prompt")]
        return self._parsed(payload, body, ignored, contents, SemanticEmbeddingFormatter, "prompt")


class BatchSemanticEmbedDialect(_EmbedDialect):
    """Dialect of `/batch_semantic_embed`: several prompts."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, BatchSemanticEmbedBody)
        if not body.prompts:
            raise InvalidRequest("must not be empty", field="prompts")
        self._budget.check_sequences("prompts", len(body.prompts), 1)
        listed = [prompt for prompt in body.prompts if not isinstance(prompt, str)]
        self._budget.check_parts("prompts", [part for prompt in listed for part in prompt])
        contents = [joined_prompt(prompt, f"prompts[{place}]") for place, prompt in enumerate(body.prompts)]
        return self._parsed(payload, body, ignored, contents, BatchEmbeddingFormatter, "prompts")


def _alias(field: str) -> str:
    return "compress_to_size" if field == "dimensions" else field
