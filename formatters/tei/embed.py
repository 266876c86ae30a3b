"""TEI's answers with embeddings. Source: the OpenAPI document of text-embeddings-inference 1.7."""

from __future__ import annotations

import math
from array import array
from operator import mul

from formatters.base import encode
from formatters.pooling import PoolingFormatter, numbers
from formatters.tei.schemas import SparseValue


class EmbedFormatter(PoolingFormatter):
    """A list of vectors, even for a single input: `[[0.5,..],..]`."""

    def finish(self) -> bytes:
        return encode([numbers(vector) for vector in self.vectors])


class EmbedAllFormatter(PoolingFormatter):
    """A list of vectors per input, one per token: `[[[0.5,..],..],..]`."""

    def finish(self) -> bytes:
        return encode([self.token_vectors(place) for place in range(len(self.vectors))])


class EmbedSparseFormatter(PoolingFormatter):
    """The numbers that are not zero, with their indices in the vocabulary: `[[{"index":5,"value":0.5},..],..]`."""

    def finish(self) -> bytes:
        return encode([_sparse_values(vector) for vector in self.vectors])


class SimilarityFormatter(PoolingFormatter):
    """The cosine similarities of the first text with each of the others: `[0.5,..]`."""

    def finish(self) -> bytes:
        source, *others = map(numbers, self.vectors)
        return encode(array("f", [_cosine(source, other) for other in others]).tolist())


def _sparse_values(vector: bytes) -> list[SparseValue]:
    half = len(vector) // 2
    indices = array("i", vector[:half])
    return [SparseValue(index, value) for index, value in zip(indices, numbers(vector[half:]), strict=True)]


def _cosine(one: list[float], other: list[float]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(map(mul, one, other)) / lengths if lengths else 0.0
