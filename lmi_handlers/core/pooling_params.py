"""How to turn the vectors of a prompt's tokens into one embedding, for all dialects and backends."""

from __future__ import annotations

import msgspec

from lmi_handlers.core.errors import InvalidRequest


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request for embeddings asks of the pooler. Validated on construction; raises `InvalidRequest`.

    `dimensions` keeps only the first numbers of each vector. `normalize` then scales the vector to length 1. Without it,
    the vector is what the model's own files compute.
    """

    normalize: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidRequest(f"must be at least 1, got {self.dimensions}", field="dimensions")
