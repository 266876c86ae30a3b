"""The interface between the scheduler and the code that computes logits."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from backends.transformers.sequence import Chunk, Sequence


class Runner(ABC):
    """Runs the model over chunks of sequences and caches the results."""

    takes_partial_prompts: bool
    """True if a prompt may be split into several chunks."""

    @property
    def layers_computed(self) -> int:
        """Grows during a forward pass if the runner can tell. May be read from any thread."""
        return 0

    @abstractmethod
    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """Return the requested logits, `[sum of num_logits, vocabulary]`, in the order of `chunks`."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Drop a sequence. Ignored if it was never in `forward`."""
