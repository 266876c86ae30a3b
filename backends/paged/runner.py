"""The interface between the scheduler and the code that computes logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as AbstractSequence
from typing import Any

from backends.paged.sequence import Sequence, SequenceChunk


class Runner(ABC):
    """Runs the model over chunks of sequences, and keeps their keys and values in blocks.

    The scheduler decides which block belongs to which sequence: `Sequence.blocks` covers all positions of a chunk.
    Sequences may share full blocks, which are only read.
    """

    block_size: int
    """Tokens per block."""
    num_blocks: int
    """Blocks in the KV cache, numbered from 0."""
    vocab_size: int
    """Length of a row of logits."""
    takes_partial_prompts: bool = True
    """True if a prompt may be split into several chunks."""
    shares_blocks: bool = True
    """True if a sequence may start with blocks that another one has computed. Required for prefix caching."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers, after the first forward pass. 0 if blocks cannot be read and written."""
        return 0

    def read_block(self, block: int) -> bytes:
        """Return the contents of a block, `block_bytes` long."""
        raise NotImplementedError

    def write_block(self, block: int, data: bytes) -> None:
        """Fill a block with what `read_block` has returned for it or another one."""
        raise NotImplementedError

    @property
    def layers_computed(self) -> int:
        """Grows during a forward pass if the runner can tell. May be read from any thread."""
        return 0

    @abstractmethod
    def forward(self, chunks: list[SequenceChunk]) -> Any:
        """Compute the chunks and cache their keys and values.

        Returns the requested logits, `[sum of num_logits, vocab_size]` in the order of `chunks`, as a NumPy array or a
        torch tensor, which the caller may overwrite until the next call. Raises `MemoryError` if the computation does
        not fit into memory; the same chunks, or some of them, can then be computed again.
        """

    def release(self, sequence: Sequence) -> None:
        """Called when a sequence has ended, before its blocks are freed, or was preempted, after it has lost them.

        Ignored if it was never in `forward`. If `sequence.failed`, its blocks may hold values that must not be read
        again, not even if masked.
        """

    def reclaim(self, blocks: AbstractSequence[int]) -> None:
        """Give the memory of unused blocks back to the operating system. Their contents may be lost."""
