"""TEI's embeddings: `/embed`, `/embed_all`, `/embed_sparse` and `/similarity`.

huggingface_hub's `feature_extraction` sends the body of `/embed` to `/`.

Sources: the OpenAPI document of text-embeddings-inference 1.7, and huggingface_hub for `dimensions` and
`encoding_format`. null means absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from formatters.tei.embed import EmbedAllFormatter, EmbedFormatter, EmbedSparseFormatter, SimilarityFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.openai.body import Prompts, num_prompts, split_prompts
from lmi_handlers.apis.pooling_prompts import embedding_prompts, model_prompt
from lmi_handlers.apis.tei.dialect import TeiDialect, TruncationFields
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.pooling_params import PoolingParams, PoolingTask
from lmi_handlers.core.request import Prompt
from lmi_handlers.serving.parsed import FormatterFactory, ModelFacts, Parsed


class EmbedFields(TruncationFields, frozen=True, kw_only=True):
    """Fields that also apply to a similarity. `prompt_name` is one of the model's own prompts."""

    prompt_name: str | None = None


class EmbedAllBody(EmbedFields, frozen=True, kw_only=True):
    """The body of `/embed_all` and `/embed_sparse`."""

    inputs: Prompts


class EmbedBody(EmbedAllBody, frozen=True, kw_only=True):
    """The body of `/embed`."""

    normalize: bool | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    encoding_format: Literal["float"] | None = None


class SimilarityInputs(msgspec.Struct, frozen=True, kw_only=True):
    """A text, and those to compare it with."""

    source_sentence: str
    sentences: list[str]


class SimilarityBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/similarity`."""

    inputs: SimilarityInputs
    parameters: EmbedFields | None = None


class _EmbeddingDialect(TeiDialect):
    def _embedded(
        self,
        payload: Payload,
        body: EmbedAllBody,
        ignored: tuple[str, ...],
        params: PoolingParams,
        formatter: FormatterFactory,
    ) -> Parsed:
        self._budget.check_sequences("inputs", num_prompts(body.inputs), 1)
        prompts = self._prompts(split_prompts(body.inputs, "inputs"), payload.adapter, body.prompt_name)
        return self._parsed(payload, body, ignored, prompts, params, formatter)

    def _prompts(
        self, contents: tuple[str | tuple[int, ...], ...], adapter: str | None, prompt_name: str | None
    ) -> tuple[Prompt, ...]:
        prefix = model_prompt(self._facts().prompts, prompt_name)
        return embedding_prompts(contents, adapter, prefix=prefix, field="prompt_name")


class EmbedDialect(_EmbeddingDialect):
    """Dialect of `/embed`. `normalize` is its default."""

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, normalize: bool) -> None:
        super().__init__(facts, budget=budget)
        self._normalize = normalize

    def parse(self, payload: Payload) -> Parsed:
        ignored = unknown_names(payload.fields, EmbedBody, nulls=False)
        body = decode_typed(payload.data, EmbedBody)
        normalize = self._normalize if body.normalize is None else body.normalize
        params = PoolingParams(normalize=normalize, dimensions=body.dimensions)
        return self._embedded(payload, body, ignored, params, EmbedFormatter)


class TokenEmbedDialect(_EmbeddingDialect):
    """Dialect of `/embed_all` and `/embed_sparse`."""

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, task: PoolingTask) -> None:
        super().__init__(facts, budget=budget)
        self._params = PoolingParams(task=task)
        self._formatter = EmbedAllFormatter if task == "embed_all" else EmbedSparseFormatter

    def parse(self, payload: Payload) -> Parsed:
        ignored = unknown_names(payload.fields, EmbedAllBody, nulls=False)
        body = decode_typed(payload.data, EmbedAllBody)
        return self._embedded(payload, body, ignored, self._params, self._formatter)


class SimilarityDialect(_EmbeddingDialect):
    """Dialect of `/similarity`."""

    def parse(self, payload: Payload) -> Parsed:
        ignored = unknown_names(payload.fields, SimilarityBody, nulls=False)
        body = decode_typed(payload.data, SimilarityBody)
        texts = (body.inputs.source_sentence, *body.inputs.sentences)
        if len(texts) == 1:
            raise InvalidRequest("must not be empty", field="inputs.sentences")
        self._budget.check_sequences("inputs.sentences", len(texts), 1)
        fields = body.parameters or EmbedFields()
        prompts = self._prompts(texts, payload.adapter, fields.prompt_name)
        return self._parsed(payload, fields, ignored, prompts, PoolingParams(normalize=False), SimilarityFormatter)
