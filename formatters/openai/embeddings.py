"""OpenAI's answers with embeddings. Source: OpenAI's API reference."""

from __future__ import annotations

import base64

from formatters.base import encode
from formatters.openai import schemas
from formatters.pooling import PoolingFormatter, numbers
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class EmbeddingListFormatter(PoolingFormatter):
    """All vectors in one list: as JSON numbers, or with `as_base64` as little-endian float32 numbers in base64.

    `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,..]}],"model":"..","usage":{..}}`
    """

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, model: str, as_base64: bool
    ) -> None:
        super().__init__(request, prompts)
        self._model = model
        self._as_base64 = as_base64

    def finish(self) -> bytes:
        tokens = sum(self.prompt_tokens)
        data = [
            schemas.Embedding("embedding", index, self._embedding(vector)) for index, vector in enumerate(self.vectors)
        ]
        return encode(schemas.EmbeddingList("list", data, self._model, schemas.EmbeddingUsage(tokens, tokens)))

    def _embedding(self, vector: bytes) -> list[float] | str:
        return base64.b64encode(vector).decode() if self._as_base64 else numbers(vector)
