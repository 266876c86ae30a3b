"""Embeddings and scores without a model. Each follows from the tokens, so tests know it."""

from __future__ import annotations

import math
from array import array
from itertools import chain

from lmi_handlers.core.pooling_params import PoolingParams, PoolingTask
from lmi_handlers.core.request import EncodedPrompt

EMBEDDING_SIZE = 16
EMBEDDING_TASKS: tuple[PoolingTask, ...] = ("embed", "embed_all", "embed_sparse")
RANKING_TASKS: tuple[PoolingTask, ...] = ("classify",)


def pooled(prompt: EncodedPrompt, params: PoolingParams) -> bytes:
    """Return what a request asks for, as `TokenOutput.embedding`.

    Number i of a vector counts the token ids that leave the remainder i when divided by `EMBEDDING_SIZE`. The score of
    a pair is the share of the second text's tokens that the first one has too.
    """
    token_ids = prompt.token_ids
    if params.task == "classify":
        return array("f", [_activated(_share(prompt), params)]).tobytes()
    if params.task == "embed_all":
        return array("f", chain.from_iterable(_counts([token_id]) for token_id in token_ids)).tobytes()
    counts = _counts(token_ids)
    if params.task == "embed_sparse":
        places = [place for place, count in enumerate(counts) if count]
        return array("i", places).tobytes() + array("f", [counts[place] for place in places]).tobytes()
    counts = counts[: params.dimensions]
    length = math.hypot(*counts) if params.normalize else 1.0
    return array("f", [count / (length or 1.0) for count in counts]).tobytes()


def _counts(token_ids: list[int]) -> list[float]:
    counts = [0.0] * EMBEDDING_SIZE
    for token_id in token_ids:
        counts[token_id % EMBEDDING_SIZE] += 1
    return counts


def _share(prompt: EncodedPrompt) -> float:
    tokens = list(zip(prompt.token_ids, prompt.token_type_ids or [0] * len(prompt.token_ids), strict=True))
    first = {token_id for token_id, text in tokens if text == 0}
    second = [token_id for token_id, text in tokens if text == 1]
    return sum(token_id in first for token_id in second) / max(len(second), 1)


def _activated(score: float, params: PoolingParams) -> float:
    if params.activation == "softmax":
        return 1.0  # there is a single label
    return score if params.activation == "none" else 1 / (1 + math.exp(-score))
