"""vLLM's answers with classes, vectors and scores. Source: vLLM 0.32."""

from __future__ import annotations

import base64
import math
import time
from array import array

from formatters.base import encode
from formatters.pooling import PoolingFormatter, numbers
from formatters.vllm import schemas
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class ClassifyFormatter(PoolingFormatter):
    """`{"id":"..",..,"data":[{"index":0,"label":"..","probs":[0.9,0.1],"num_classes":2},..],"usage":{..}}`.

    `labels` are the names of the scores. The label of a text is the one with the highest.
    """

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, model: str, labels: tuple[str, ...]
    ) -> None:
        super().__init__(request, prompts)
        self._model = model
        self._labels = labels

    def finish(self) -> bytes:
        data = [self._class(index, numbers(vector)) for index, vector in enumerate(self.vectors)]
        tokens = sum(self.prompt_tokens)
        return encode(
            schemas.ClassifyResponse(
                f"classify-{self.request.request_id}",
                "list",
                int(time.time()),
                self._model,
                data,
                schemas.ScoreUsage(tokens, tokens, 0, None),
            )
        )

    def _class(self, index: int, probs: list[float]) -> schemas.ClassifyData:
        best = max(range(len(probs)), key=probs.__getitem__)
        return schemas.ClassifyData(index, self._labels[best], probs, len(probs))


class PooledFormatter(PoolingFormatter):
    """`{"id":"..",..,"data":[{"index":0,"object":"pooling","data":[0.5,..]},..],"usage":{..}}`.

    With `per_token`, the data is a list of vectors, which `normalize` scales to length 1. With `as_base64`, it is all
    numbers as little-endian float32 in base64.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prompts: tuple[RenderedPrompt, ...],
        *,
        model: str,
        as_base64: bool,
        per_token: bool,
        normalize: bool,
    ) -> None:
        super().__init__(request, prompts)
        self._model = model
        self._as_base64 = as_base64
        self._per_token = per_token
        self._normalize = normalize

    def finish(self) -> bytes:
        data = [schemas.PoolingData(index, "pooling", self._data(index)) for index in range(len(self.vectors))]
        tokens = sum(self.prompt_tokens)
        return encode(
            schemas.PoolingResponse(
                f"pooling-{self.request.request_id}",
                "list",
                int(time.time()),
                self._model,
                data,
                schemas.ScoreUsage(tokens, tokens, 0, None),
            )
        )

    def _data(self, index: int) -> list[float] | list[list[float]] | str:
        if not self._per_token:
            vector = self.vectors[index]
            return base64.b64encode(vector).decode() if self._as_base64 else numbers(vector)
        vectors = self.token_vectors(index)
        if self._normalize:
            vectors = [_scaled(vector) for vector in vectors]
        if not self._as_base64:
            return vectors
        return base64.b64encode(b"".join(array("f", vector).tobytes() for vector in vectors)).decode()


def _scaled(vector: list[float]) -> list[float]:
    """Return the vector with length 1, of 32-bit numbers."""
    length = math.hypot(*vector) or 1.0
    return array("f", [number / length for number in vector]).tolist()
