"""Shared by the formats of embeddings and scores."""

from __future__ import annotations

from abc import abstractmethod
from array import array

from formatters.base import Formatter
from lmi_handlers.core.outputs import TextDelta
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class PoolingFormatter(Formatter):
    """Collects one vector per prompt, in the order of the prompts, and writes one document at the end."""

    content_type = "application/json"
    streams = False

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...]) -> None:
        super().__init__(request, prompts)
        self.vectors = [b""] * len(prompts)

    def feed(self, delta: TextDelta) -> bytes:
        self.vectors[delta.index] = delta.embedding or b""
        return b""

    @abstractmethod
    def finish(self) -> bytes:
        """Return the document."""

    def token_vectors(self, place: int) -> list[list[float]]:
        """Return the vectors of the tokens of a prompt, which the engine returns as one."""
        joined = numbers(self.vectors[place])
        size = len(joined) // self.prompt_tokens[place]
        return [joined[start : start + size] for start in range(0, len(joined), size)]

    @property
    def scores(self) -> list[float]:
        """The first number of each vector, which is the score of a pair of texts."""
        return [numbers(vector)[0] for vector in self.vectors]


def numbers(vector: bytes) -> list[float]:
    """Return the numbers of a vector. Each is exactly the 32-bit float that the engine computed."""
    return array("f", vector).tolist()
