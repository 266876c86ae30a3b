"""The place of each token of a step, and of those that it reads: index tensors and masks, which the layers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch

from backends.transformers.kv_cache import BLOCK_SIZE, KVCache, consecutive

Made = TypeVar("Made")

_MIN_RUN = 4
"""Blocks. Reading a run of adjacent blocks in place costs a call, copying costs time per block."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Sequences that get `num_tokens` tokens each, starting at `first_token` in the batch.

    `pasts` has the number of cached tokens of each sequence, without the new ones, and `tables` its blocks.
    """

    first_token: int
    num_tokens: int
    pasts: list[int]
    tables: list[list[int]]

    @property
    def tokens(self) -> slice:
        """The segment's tokens in the batch."""
        return slice(self.first_token, self.first_token + self.num_tokens * len(self.pasts))

    def blocks_read(self, row: int, window: int | None) -> range:
        """Return the range of the sequence's table that its new tokens attend to."""
        past = self.pasts[row]
        first = 0 if window is None else max(0, past + 1 - window)
        return range(first // BLOCK_SIZE, (past + self.num_tokens - 1) // BLOCK_SIZE + 1)


class Shape(NamedTuple):
    """The key of index tensors and masks besides the segment: the layer's window, heads, dtype and device."""

    window: int | None
    kv_heads: int
    queries_per_head: int
    """Query heads that share a key-value head."""
    dtype: torch.dtype
    device: torch.device


class Copied(NamedTuple):
    """Reads of a segment's past by copying it. A short sequence is padded.

    `rows` selects from `[num_blocks * kv_heads, ...]` and gives `[sequences, kv_heads, blocks]`. `mask` is added to
    the scores, `[sequences, 1, queries, blocks * BLOCK_SIZE]`. The queries are tokens x heads per key-value head.
    """

    rows: torch.Tensor
    mask: torch.Tensor


class InPlace(NamedTuple):
    """Reads of a segment's past in the order of the blocks in the cache, so that most are not copied.

    A read is one block of one sequence; shared blocks are read once for each. `copied` are the blocks of the first
    reads, which are copied because they have no neighbours. Then come `runs` of adjacent blocks, `(first, count)`.
    `rows` has the sequence of each read. `places` is the table `[sequences, blocks]` of reads; padding has the number
    after the last.

    `mask` is added to the scores, `[reads * kv_heads, queries, BLOCK_SIZE]`. `by_sequence` selects from the scores as
    `[(reads + 1) * kv_heads * queries, BLOCK_SIZE]` and gives `[sequences, kv_heads, queries, blocks]`. `by_read` is
    the reverse, without the padding.
    """

    copied: torch.Tensor
    runs: list[tuple[int, int]]
    rows: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor
    by_sequence: torch.Tensor
    by_read: torch.Tensor


@dataclass(slots=True)
class BatchLayout:
    """The place of each token of a step. `blocks` and `offsets` (in the block) have one entry per token.

    `windows` collects the sliding window that each layer passes, so that a caller can check it.
    """

    cache: KVCache
    blocks: torch.Tensor
    offsets: torch.Tensor
    segments: list[Segment]
    windows: dict[int, int | None] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict)

    def cache_index(self, shape: Shape) -> torch.Tensor:
        """Return the cache index for each head of each token, `[kv_heads * tokens]`. See `KVCache.write`."""
        return self._once((shape.kv_heads, shape.device), lambda: self._cache_index(shape))

    def prompt_mask(self, segment: Segment, shape: Shape) -> torch.Tensor:
        """Return the mask for the first tokens of a prompt, `[1, 1, queries, tokens]`."""
        return self._once(("prompt", segment.first_token, shape), lambda: _prompt_mask(segment, shape))

    def copied(self, segment: Segment, shape: Shape) -> Copied:
        """Return how a segment copies its past."""
        return self._once(("copied", segment.first_token, shape), lambda: _copied(segment, shape))

    def in_place(self, segment: Segment, shape: Shape) -> InPlace:
        """Return how a segment reads its past without copying."""
        return self._once(("in place", segment.first_token, shape), lambda: _in_place(segment, shape))

    def _once(self, key: Any, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def _cache_index(self, shape: Shape) -> torch.Tensor:
        heads = torch.arange(shape.kv_heads, device=shape.device)[:, None]
        rows = self.blocks.to(shape.device) * shape.kv_heads + heads
        return (rows * BLOCK_SIZE + self.offsets.to(shape.device)).flatten()


def index_tensors(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return an index tensor for each list. They reach a GPU in one transfer, which the CPU does not wait for."""
    joined = torch.tensor([number for numbers in lists for number in numbers], dtype=torch.long)
    if device.type == "cuda":
        joined = joined.pin_memory()
    return torch.split(joined.to(device, non_blocking=True), [len(numbers) for numbers in lists])


def _prompt_mask(segment: Segment, shape: Shape) -> torch.Tensor:
    tokens = torch.arange(segment.num_tokens, device=shape.device)
    return _additive(tokens[:, None], tokens, shape).repeat_interleave(shape.queries_per_head, dim=0)[None, None]


def _copied(segment: Segment, shape: Shape) -> Copied:
    reads = [segment.blocks_read(row, shape.window) for row in range(len(segment.pasts))]
    longest = max(map(len, reads))
    # Padding repeats a sequence's own last block. Other blocks may contain what must not be read, not even if masked.
    padded = [
        table[min(index, read.stop - 1)]
        for read, table in zip(reads, segment.tables, strict=True)
        for index in range(read.start, read.start + longest)
    ]
    blocks, firsts, pasts = index_tensors([padded, [read.start for read in reads], segment.pasts], shape.device)
    heads = torch.arange(shape.kv_heads, device=shape.device)[:, None]
    chosen = blocks.view(-1, 1, longest) * shape.kv_heads + heads
    tokens = pasts[:, None] + torch.arange(segment.num_tokens, device=shape.device)
    positions = firsts[:, None] * BLOCK_SIZE + torch.arange(longest * BLOCK_SIZE, device=shape.device)
    mask = _additive(tokens[:, :, None], positions[:, None], shape)
    return Copied(chosen.flatten(), mask.repeat_interleave(shape.queries_per_head, dim=1)[:, None])


def _in_place(segment: Segment, shape: Shape) -> InPlace:
    ranges = [segment.blocks_read(row, shape.window) for row in range(len(segment.pasts))]
    users: dict[int, int] = {}
    reads: list[tuple[int, int, int, int]] = []  # (number of the block's user, block, sequence, column of the table)
    for row, (blocks, table) in enumerate(zip(ranges, segment.tables, strict=True)):
        for column, index in enumerate(blocks):
            block = table[index]
            users[block] = users.get(block, -1) + 1
            reads.append((users[block], block, row, column))
    reads.sort()
    runs: list[tuple[int, int]] = []
    alone, adjacent, at = [], [], 0
    for first, count in consecutive(user << 40 | block for user, block, _, _ in reads):
        if count < _MIN_RUN:
            alone += reads[at : at + count]
        else:
            adjacent += reads[at : at + count]
            runs.append((first & ((1 << 40) - 1), count))
        at += count
    reads = alone + adjacent
    longest = max(map(len, ranges))
    table = [len(reads)] * (len(ranges) * longest)
    for place, (_, _, row, column) in enumerate(reads):
        table[row * longest + column] = place
    copied, rows, columns, places, firsts, pasts = index_tensors(
        [
            [block for _, block, _, _ in alone],
            [row for _, _, row, _ in reads],
            [column for _, _, _, column in reads],
            table,
            [blocks.start for blocks in ranges],
            segment.pasts,
        ],
        shape.device,
    )
    tokens = pasts[rows][:, None] + torch.arange(segment.num_tokens, device=shape.device)
    positions = (firsts[rows] + columns)[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=shape.device)
    mask = _additive(tokens[:, :, None], positions[:, None], shape).repeat_interleave(shape.queries_per_head, dim=1)
    queries = segment.num_tokens * shape.queries_per_head
    heads = torch.arange(shape.kv_heads * queries, device=shape.device)
    by_sequence = places.view(-1, 1, longest) * len(heads) + heads[:, None]
    by_read = (rows[:, None] * len(heads) + heads) * longest + columns[:, None]
    return InPlace(
        copied,
        runs,
        rows,
        places,
        mask.repeat_interleave(shape.kv_heads, dim=0),
        by_sequence.flatten(),
        by_read.flatten(),
    )


def _additive(tokens: torch.Tensor, positions: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return what to add to the scores, so that tokens attend to their window, and not to positions after them."""
    outside = positions > tokens
    if shape.window is not None:
        outside |= positions <= tokens - shape.window
    mask = torch.zeros(outside.shape, dtype=shape.dtype, device=shape.device)
    return mask.masked_fill_(outside, -math.inf)
