"""TEI's answer to `/embed`. Source: the OpenAPI document of text-embeddings-inference 1.7."""

from __future__ import annotations

from formatters.base import encode
from formatters.embeddings import EmbeddingFormatter, numbers


class EmbedFormatter(EmbeddingFormatter):
    """A list of vectors, even for a single input: `[[0.5,..],..]`."""

    def finish(self) -> bytes:
        return encode([numbers(vector) for vector in self.vectors])
