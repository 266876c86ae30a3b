"""Aleph Alpha's answers with embeddings. Source: aleph-alpha-client 11.5."""

from __future__ import annotations

from formatters.aleph_alpha import schemas
from formatters.base import encode
from formatters.pooling import PoolingFormatter, numbers
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class ModelEmbeddingFormatter(PoolingFormatter):
    """An answer that names the model."""

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, model_version: str) -> None:
        super().__init__(request, prompts)
        self.model_version = model_version


class SemanticEmbeddingFormatter(ModelEmbeddingFormatter):
    """One vector: `{"model_version":"..","embedding":[0.5,..],"num_tokens_prompt_total":3}`."""

    def finish(self) -> bytes:
        (vector,) = self.vectors
        return encode(schemas.SemanticEmbedding(self.model_version, numbers(vector), sum(self.prompt_tokens)))


class BatchEmbeddingFormatter(ModelEmbeddingFormatter):
    """All vectors: `{"model_version":"..","embeddings":[[0.5,..],..],"num_tokens_prompt_total":3}`."""

    def finish(self) -> bytes:
        vectors = [numbers(vector) for vector in self.vectors]
        return encode(schemas.SemanticEmbeddings(self.model_version, vectors, sum(self.prompt_tokens)))
