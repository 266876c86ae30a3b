"""TEI's answers with scores. Source: text-embeddings-inference 1.7, its OpenAPI document and router."""

from __future__ import annotations

from operator import attrgetter

from msgspec import UNSET

from formatters.base import encode
from formatters.pooling import PoolingFormatter, numbers
from formatters.tei.schemas import Prediction, Rank
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class RerankFormatter(PoolingFormatter):
    """The texts by their scores, highest first: `[{"index":1,"text":"..","score":0.5},..]`.

    `texts` is None if the answer is not to repeat them.
    """

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, texts: list[str] | None
    ) -> None:
        super().__init__(request, prompts)
        self._texts = texts

    def finish(self) -> bytes:
        ranks = [
            Rank(index=index, text=UNSET if self._texts is None else self._texts[index], score=score)
            for index, score in enumerate(self.scores)
        ]
        return encode(sorted(ranks, key=attrgetter("score"), reverse=True))


class PredictFormatter(PoolingFormatter):
    """The labels by their scores, highest first: `[{"score":0.9,"label":".."},..]`.

    Several inputs are answered by a list of these.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prompts: tuple[RenderedPrompt, ...],
        *,
        labels: tuple[str, ...],
        single: bool,
    ) -> None:
        super().__init__(request, prompts)
        self._labels = labels
        self._single = single

    def finish(self) -> bytes:
        predictions = [self._predictions(vector) for vector in self.vectors]
        return encode(predictions[0] if self._single else predictions)

    def _predictions(self, vector: bytes) -> list[Prediction]:
        found = [Prediction(score, label) for score, label in zip(numbers(vector), self._labels, strict=True)]
        return sorted(found, key=attrgetter("score"), reverse=True)
