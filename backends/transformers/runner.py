"""The contract between the scheduler and whatever computes logits."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from backends.transformers.sequence import Chunk, Sequence


class Runner(ABC):
    """Runs the model over chunks of sequences and keeps what they have computed."""

    takes_partial_prompts: bool
    """True where a prompt may come in several chunks."""

    @property
    def layers_computed(self) -> int:
        """Grows during a forward, where the runner can tell; any thread may ask."""
        return 0

    @abstractmethod
    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """Return the wanted logits, `[sum of num_logits, vocabulary]`, in the order of `chunks`."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Forget a sequence; one that was never in `forward` is ignored."""
