"""OpenAI's embeddings: `POST /v1/embeddings`.

Sources: OpenAI's API reference, and vLLM for the fields from `truncate_prompt_tokens` on. null means absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import msgspec

from formatters.openai.embeddings import EmbeddingListFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.body import Prompts, num_prompts, split_prompts
from lmi_handlers.apis.openai.dialect import OpenAIDialect, check_length
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.serving.parsed import ModelFacts, Parsed


class EmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/v1/embeddings`. `user` is accepted and ignored.

    `truncate_prompt_tokens` keeps the beginning of each input; -1 keeps as much as the model takes.
    """

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None

    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    normalize: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


class EmbeddingsDialect(OpenAIDialect):
    """Dialect of `/v1/embeddings`, and of bodies with `input` on the invoke routes. `normalize` is its default."""

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, normalize: bool) -> None:
        super().__init__(facts, budget=budget)
        self._normalize = normalize

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, EmbeddingsBody)
        self._budget.check_sequences("input", num_prompts(body.input), 1)
        truncate = body.truncate_prompt_tokens
        adapter = self._adapter(body.model, payload)
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=tuple(Prompt(content, adapter) for content in split_prompts(body.input, "input")),
            pooling_params=PoolingParams(
                normalize=self._normalize if body.normalize is None else body.normalize, dimensions=body.dimensions
            ),
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            truncate=self._facts().capabilities.max_input_tokens if truncate == -1 else truncate,
            truncation_side="right",
            ignored_parameters=ignored,
        )
        formatter = partial(
            EmbeddingListFormatter,
            model=self._model_name(body.model),
            as_base64=body.encoding_format == "base64",
        )
        return Parsed(request, formatter, str, partial(check_length, "input"), "input")
