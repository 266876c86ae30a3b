"""LMI's answers with embeddings. Source: the LMI text embedding user guide."""

from __future__ import annotations

from formatters.base import encode
from formatters.pooling import PoolingFormatter, numbers
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class VectorsFormatter(PoolingFormatter):
    """A list of vectors, or for a `single` input its vector alone: `[0.5,..]`."""

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, single: bool) -> None:
        super().__init__(request, prompts)
        self._single = single

    def finish(self) -> bytes:
        vectors = [numbers(vector) for vector in self.vectors]
        return encode(vectors[0] if self._single else vectors)
