"""A runner whose logits depend on every token it has stored for a sequence, so that a wrong block changes the result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from collections.abc import Sequence as AbstractSequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.base import ModelFiles
from backends.paged.backend import PagedBackend
from backends.paged.runner import Runner
from backends.paged.sequence import Sequence, SequenceChunk
from lmi_handlers.config.properties import ServingProperties


class StoredTokensRunner(Runner):
    """The "keys and values" are the token ids. Logits are drawn at random, from seeds made of all tokens so far.

    A step of more than `memory` tokens raises `MemoryError`, and so do the steps in `failing`, counted from 0, after they
    have written something wrong.
    """

    block_size = 4

    def __init__(
        self,
        num_blocks: int,
        *,
        vocab_size: int = 64,
        memory: int = 10**9,
        partial: bool = True,
        failing: Collection[int] = (),
    ) -> None:
        self.num_blocks = num_blocks
        self.vocab_size = vocab_size
        self.takes_partial_prompts = partial
        self.memory = memory
        self._failing = failing
        self._steps = itertools.count()
        self.forwards: list[list[SequenceChunk]] = []
        self.released: list[str] = []
        self.reclaimed: list[int] = []
        self._stored = np.zeros((num_blocks, self.block_size), np.int64)

    def forward(self, chunks: list[SequenceChunk]) -> Any:
        if sum(len(chunk.token_ids) for chunk in chunks) > self.memory:
            raise MemoryError
        fails = next(self._steps) in self._failing
        for chunk in chunks:
            positions = np.arange(chunk.start, chunk.stop)
            blocks = np.asarray(chunk.sequence.blocks)
            self._stored[blocks[positions // self.block_size], positions % self.block_size] = (
                self.vocab_size if fails else chunk.token_ids
            )
        if fails:
            raise MemoryError
        self.forwards.append(chunks)
        rows = [
            self._logits(chunk, length)
            for chunk in chunks
            for length in range(chunk.stop - chunk.num_logits + 1, chunk.stop + 1)
        ]
        return np.array(rows, np.float32).reshape(-1, self.vocab_size)

    @property
    def block_bytes(self) -> int:
        return int(self._stored[0].nbytes)

    def read_block(self, block: int) -> bytes:
        return bytes(self._stored[block].tobytes())

    def write_block(self, block: int, data: bytes) -> None:
        self._stored[block] = np.frombuffer(data, np.int64)

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence.request_id)

    def reclaim(self, blocks: AbstractSequence[int]) -> None:
        self.reclaimed += blocks
        self._stored[list(blocks)] = -1

    def _logits(self, chunk: SequenceChunk, length: int) -> npt.NDArray[np.float64]:
        past = self._stored[chunk.sequence.blocks].reshape(-1)[:length]
        # The last two tokens decide most, so texts repeat themselves; all others change the logits a little.
        recent, all_ = (np.random.default_rng(past[-size:].tolist()) for size in (2, length))
        return recent.normal(scale=3.0, size=self.vocab_size) + all_.normal(scale=0.1, size=self.vocab_size)


class StoredTokensBackend(PagedBackend):
    """The adapter for that runner."""

    @classmethod
    def load(
        cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]
    ) -> StoredTokensBackend:
        raise NotImplementedError
