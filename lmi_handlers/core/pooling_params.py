"""Parameters of pooling, which makes one vector of the vectors of a prompt's tokens, for all dialects and backends."""

from __future__ import annotations

from typing import Literal

import msgspec

from lmi_handlers.core.errors import InvalidRequest

PoolingTask = Literal["embed", "embed_all", "embed_sparse", "classify"]
"""The result to compute for a prompt: one vector, one vector per token, one weight per token of the vocabulary, or one score
per label."""

Activation = Literal["model", "sigmoid", "softmax", "none"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request's parameters for the pooler. Validated on construction; raises `InvalidRequest`.

    For `embed`: `dimensions` keeps only the first numbers of each vector. `normalize` then scales the vector to length
    1. Without it, the vector is what the model's own files compute.

    For `classify`: `activation` is applied to the scores. "model" is the function that the model's own files name.
    """

    task: PoolingTask = "embed"
    normalize: bool = True
    dimensions: int | None = None
    activation: Activation = "model"

    def __post_init__(self) -> None:
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidRequest(f"must be at least 1, got {self.dimensions}", field="dimensions")
