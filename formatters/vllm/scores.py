"""vLLM's answers with scores, which the clients of Jina and Cohere read too. Source: vLLM 0.32."""

from __future__ import annotations

import time
from operator import attrgetter

from msgspec import UNSET, UnsetType

from formatters.base import encode
from formatters.pooling import PoolingFormatter
from formatters.vllm import schemas
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class RerankFormatter(PoolingFormatter):
    """`{"id":"..","model":"..","usage":{..},"results":[{"index":1,"document":{..},"relevance_score":0.9},..]}`.

    Highest scores first, at most `top_n`. `documents` is None if the answer is not to repeat them.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prompts: tuple[RenderedPrompt, ...],
        *,
        model: str,
        documents: list[str] | None,
        top_n: int | None,
    ) -> None:
        super().__init__(request, prompts)
        self._model = model
        self._documents = documents
        self._top_n = top_n

    def finish(self) -> bytes:
        results = [
            schemas.RerankResult(index=index, document=self._document(index), relevance_score=score)
            for index, score in enumerate(self.scores)
        ]
        results.sort(key=attrgetter("relevance_score"), reverse=True)
        tokens = sum(self.prompt_tokens)
        usage = schemas.RerankUsage(tokens, tokens)
        return encode(
            schemas.RerankResponse(f"score-{self.request.request_id}", self._model, usage, results[: self._top_n])
        )

    def _document(self, index: int) -> schemas.RerankDocument | UnsetType:
        return UNSET if self._documents is None else schemas.RerankDocument(self._documents[index], None)


class ScoreFormatter(PoolingFormatter):
    """`{"id":"..","object":"list",..,"data":[{"index":0,"object":"score","score":0.9},..],"usage":{..}}`."""

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, model: str) -> None:
        super().__init__(request, prompts)
        self._model = model

    def finish(self) -> bytes:
        data = [schemas.ScoreData(index, "score", score) for index, score in enumerate(self.scores)]
        tokens = sum(self.prompt_tokens)
        return encode(
            schemas.ScoreResponse(
                f"score-{self.request.request_id}",
                "list",
                int(time.time()),
                self._model,
                data,
                schemas.ScoreUsage(tokens, tokens, 0, None),
            )
        )
