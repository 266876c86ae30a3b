"""The rolling batch: computes all tokens of a step in one forward pass, across sequences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as AbstractSequence
from typing import Any

import torch

from backends.paged.runner import Runner
from backends.paged.sequence import Sequence, SequenceChunk
from backends.transformers.attention import MAX_DECODE_TOKENS
from backends.transformers.kv_cache import BLOCK_SIZE, KVCache
from backends.transformers.layout import BatchLayout, Segment, index_tensors
from backends.transformers.lora_layers import LoraLayers
from backends.transformers.memory_errors import memory_errors

# The cost of one more call of the attention kernels, in positions that could be read in the same time. On a GPU reading
# is nearly free, but calls are not.
CALL_COST_CPU = 1024
CALL_COST_GPU = 65536


class RollingRunner(Runner):
    """Flattens the step's tokens to `[1, tokens]`. Keys and values are in a cache of `num_blocks` blocks.

    `lora` applies each sequence's adapter to its tokens.
    """

    block_size = BLOCK_SIZE

    def __init__(self, model: Any, num_blocks: int, lora: LoraLayers) -> None:
        self._model = model
        self.lora = lora
        embeddings: torch.Tensor = model.get_input_embeddings().weight
        self.vocab_size = embeddings.shape[0]
        self.num_blocks = num_blocks
        self._device = embeddings.device
        self._call_cost = CALL_COST_CPU if self._device.type == "cpu" else CALL_COST_GPU
        self._cache = KVCache(num_blocks)
        self._unusable: set[int] = set()
        self.windows: dict[int, int | None] = {}
        """Sliding window of each layer, as the layer passed it in the last step."""

    @property
    def block_bytes(self) -> int:
        """Memory per block, in all layers. Known after the first forward pass."""
        return self._cache.block_bytes

    @property
    def layers_computed(self) -> int:
        """Number of cache writes. Each layer writes once per forward pass."""
        return self._cache.num_writes

    def forward(self, chunks: list[SequenceChunk]) -> torch.Tensor:
        """Compute all chunks in one forward pass. The sequences that get few tokens come first in the batch."""
        groups = list(self._groups(chunks))
        start_of: dict[int, int] = {}
        segments: list[Segment] = []
        end = 0
        for group in groups:
            segments.append(_segment(end, group))
            for chunk in group:
                start_of[id(chunk)] = end
                end += len(chunk.token_ids)
        ordered = [chunk for group in groups for chunk in group]
        positions = [position for chunk in ordered for position in range(chunk.start, chunk.stop)]
        tables = [chunk.sequence.blocks for chunk in ordered for _ in chunk.token_ids]
        stops = [(start_of[id(chunk)] + len(chunk.token_ids), chunk.num_logits) for chunk in chunks]
        wanted = [row for stop, num_logits in stops for row in range(stop - num_logits, stop)]
        with memory_errors(), torch.inference_mode():
            self._erase_unusable(chunks)
            token_ids, at, blocks, offsets, rows = index_tensors(
                [
                    [token for chunk in ordered for token in chunk.token_ids],
                    positions,
                    [table[position // BLOCK_SIZE] for table, position in zip(tables, positions, strict=True)],
                    [position % BLOCK_SIZE for position in positions],
                    wanted or [0],  # not every model and kernel accepts an empty list
                ],
                self._device,
            )
            layout = BatchLayout(self._cache, blocks, offsets, segments)
            with self.lora.adapted([(chunk.sequence.adapter, len(chunk.token_ids)) for chunk in ordered]):
                output = self._model(
                    input_ids=token_ids[None],
                    position_ids=at[None],
                    use_cache=False,
                    logits_to_keep=rows,
                    rolling_batch=layout,
                )
        self.windows = layout.windows
        logits: torch.Tensor = output.logits[0, : len(wanted)]
        return logits

    def release(self, sequence: Sequence) -> None:
        """Remember the blocks of a failed sequence. Whoever shares them fails as well; the next owner must not."""
        if sequence.failed:
            self._unusable.update(sequence.blocks)

    def read_block(self, block: int) -> bytes:
        """Return the contents of a block: the keys and the values of one layer after the other."""
        return self._cache.read(block)

    def write_block(self, block: int, data: bytes) -> None:
        """Fill a block with what `read_block` has returned."""
        self._cache.fill(block, data)
        self._unusable.discard(block)

    def reclaim(self, blocks: AbstractSequence[int]) -> None:
        """Give the memory of unused blocks back to the operating system, if they are in the main memory."""
        self._cache.reclaim(blocks)

    def _erase_unusable(self, chunks: list[SequenceChunk]) -> None:
        """Erase what a failed sequence has left in a block, when another one is about to write the block's beginning."""
        if self._unusable:
            taken = [chunk.sequence.blocks[-(-chunk.start // BLOCK_SIZE) :] for chunk in chunks]
            blocks = self._unusable.intersection(block for table in taken for block in table)
            self._cache.erase(sorted(blocks))
            self._unusable -= blocks

    def _groups(self, chunks: list[SequenceChunk]) -> Iterator[list[SequenceChunk]]:
        """Yield the chunks that are computed together. They have the same number of tokens."""
        few: dict[int, list[SequenceChunk]] = defaultdict(list)
        for chunk in chunks:
            if chunk.start > 0 and len(chunk.token_ids) <= MAX_DECODE_TOKENS:
                few[len(chunk.token_ids)].append(chunk)
        for same in few.values():
            same.sort(key=lambda chunk: chunk.stop, reverse=True)
            for size in group_sizes([chunk.stop for chunk in same], self._call_cost):
                yield same[:size]
                del same[:size]
        for chunk in chunks:
            if not (chunk.start > 0 and len(chunk.token_ids) <= MAX_DECODE_TOKENS):
                yield [chunk]


def _segment(first_token: int, group: list[SequenceChunk]) -> Segment:
    return Segment(
        first_token,
        len(group[0].token_ids),
        [chunk.start for chunk in group],
        [chunk.sequence.blocks for chunk in group],
    )


def group_sizes(lengths: list[int], call_cost: int) -> list[int]:
    """Split descending `lengths` into groups. A new one starts if padding to the first length costs more.

    `call_cost` is the cost of one more group, in tokens read.
    """
    sizes: list[int] = []
    longest = 0
    padding = 0
    for length in lengths:
        if sizes and padding + longest - length <= call_cost:
            sizes[-1] += 1
            padding += longest - length
        else:
            sizes.append(1)
            longest, padding = length, 0
    return sizes
