"""Decides which tokens of which sequences are computed in a step, and which blocks they use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from backends.paged.block_pool import BlockPool, block_digests, text_digest
from backends.paged.sequence import Sequence, SequenceChunk


class Scheduler:
    """Continuous batching with chunked prefill over the blocks of a pool.

    A sequence starts once there are blocks for all of its known tokens; the beginning that the prefix cache holds is
    not computed again. Sequences that generate are in every step. If one of them needs a block and none is free, the
    sequence that came last gives up its blocks and starts again in a later step (preemption), so the one that came first
    always gets on. A sequence must fit into the pool alone: `max_len` is at most `num_blocks * block_size`.

    Prompts share the step's remaining tokens: half of them are for the prompt that came first, the other half for the
    others, those with the least to compute first. So a long prompt neither delays short ones nor is it starved by them.
    If the one that came first waits for another one to compute their common beginning, its half is for that one.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        max_num_seqs: int,
        enable_prefix_caching: bool = True,
        takes_partial_prompts: bool = True,
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._caches_prefixes = enable_prefix_caching
        self._takes_partial_prompts = takes_partial_prompts
        self._waiting: list[Sequence] = []
        self._started: list[Sequence] = []  # both in order of arrival
        self._arrivals: dict[str, int] = {}
        self._numbers = itertools.count()
        self.secret: bytes | None = None
        """The secret of the digests of tokens, if it is not this process's own. Set before the first sequence."""
        self.on_shared: Callable[[Sequence], None] | None = None
        """Called with each sequence that has been given blocks of others, its first `num_computed` tokens."""
        self.copy_block: Callable[[int, int], bool] | None = None
        """Copies the contents of a block to another one. Returns False if the runner cannot."""
        self.num_preemptions = 0
        self.num_queried_tokens = 0
        """Tokens that were looked up in the prefix cache when sequences first started: their prompts, and what was generated
        before. In `num_hit_tokens` those that were found.

        As in vLLM, prompts whose log probabilities are wanted are not looked up.
        """
        self.num_hit_tokens = 0

    @property
    def num_generating(self) -> int:
        """Number of sequences that get their next token in the next step."""
        return sum(map(_generates, self._started))

    @property
    def num_prompts(self) -> int:
        """Number of sequences whose prompts can be computed now, without those that wait for a place or for blocks.

        Blocks that they could share are not taken into account.
        """
        started = len(self._started)
        needed = (self._missing(sequence, len(sequence.token_ids)) + 1 for sequence in self._waiting)
        fitting = itertools.takewhile(
            lambda total: total <= self._pool.num_free - started, itertools.accumulate(needed)
        )
        room = max(0, self._max_num_seqs - started)
        return started - self.num_generating + sum(1 for _ in itertools.islice(fitting, room))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind all others."""
        self._arrivals[sequence.request_id] = next(self._numbers)
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drop a sequence that has ended, and free its blocks. If it has failed, they are not cached."""
        del self._arrivals[sequence.request_id]
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            return
        self._started.remove(sequence)
        if sequence.failed:
            self._pool.forget(sequence.blocks)
        self._free(sequence)

    def keep_end(self, sequence: Sequence) -> None:
        """Keep what is computed of a sequence that is cut, so that one that continues it finds more than full blocks.

        Otherwise the end would be computed as a prompt, and the engine may round that differently. There are two blocks,
        because the sequence may be ahead of what its client has got.
        """
        size, length = self._block_size, sequence.num_computed
        if not self._caches_prefixes or sequence.failed or not sequence.blocks or length < sequence.prompt_len:
            return
        sequence.digests = self._digests(sequence, sequence.token_ids[:length])
        last = (length - 1) // size
        for index in range(max(0, last - 1), last + 1):
            tokens = sequence.token_ids[index * size : min(length, (index + 1) * size)]
            self._pool.keep_end(sequence.blocks[index], self._digest_before(sequence, index), tokens)

    def schedule(self, extra_tokens: int) -> tuple[list[SequenceChunk], list[Sequence]]:
        """Return the step's chunks, and the sequences that were preempted to make room for them.

        At most `extra_tokens` tokens are computed besides one for each generating sequence, or one whole prompt if
        prompts cannot be split. Drafts get half of them, or all if there are no prompts; prompts get the rest. There is
        at least one chunk unless there are no sequences, even if `extra_tokens` is 0.
        """
        preempted = self._make_room()
        generating = [sequence for sequence in self._started if _generates(sequence)]
        drafts = extra_tokens // 2 if self.num_prompts else extra_tokens
        chunks = []
        for sequence in generating:
            chunks.append(self._next_token(sequence, drafts))
            drafts -= chunks[-1].num_draft
            extra_tokens -= chunks[-1].num_draft
        if extra_tokens or not chunks:
            chunks += self._prefill(max(1, extra_tokens), may_start=not preempted)
        return chunks, preempted

    def computed(self, chunk: SequenceChunk, num_accepted: int = 0) -> None:
        """Record that a chunk has been computed, and that its first `num_accepted` draft tokens are right.

        These tokens are in `token_ids` by now. Full blocks become available to other sequences.
        """
        sequence = chunk.sequence
        sequence.num_computed = chunk.stop - chunk.num_draft + num_accepted
        sequence.draft = []
        full = sequence.num_computed // self._block_size
        if self._caches_prefixes and full > chunk.start // self._block_size:
            if full > len(sequence.digests):
                sequence.digests = self._digests(sequence, sequence.token_ids[: full * self._block_size])
            for index in range(chunk.start // self._block_size, full):
                self._pool.register(sequence.blocks[index], sequence.digests[index])

    # Blocks

    def _make_room(self) -> list[Sequence]:
        """Give every generating sequence a block for its next token. Returns the sequences preempted for that."""
        preempted = []
        for sequence in list(self._started):
            length = len(sequence.token_ids)
            while _generates(sequence) and self._missing(sequence, length) > self._pool.num_free:
                preempted.append(self._started[-1])
                self._preempt(self._started[-1])
            if _generates(sequence):
                self._grow(sequence, length)
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._started.remove(sequence)
        self._free(sequence)
        sequence.num_computed = 0
        sequence.draft = []
        self._waiting.append(sequence)
        self._waiting.sort(key=self._arrival)

    def _start(self, sequence: Sequence, found: list[int]) -> bool:
        """Give a waiting sequence blocks for its known tokens, first those `found` in the prefix cache.

        Returns False if there are too few free ones. A block for each sequence that has started is left, because
        otherwise they would soon preempt this one.
        """
        needed = self._missing(sequence, len(sequence.token_ids)) - len(found)
        available = self._pool.num_free - sum(self._pool.is_unused(block) for block in found)
        if needed + len(self._started) > available:
            return False
        for block in found:
            self._pool.share(block)
        sequence.meter_blocks()
        sequence.blocks = found + self._pool.allocate(needed)
        sequence.num_computed = len(found) * self._block_size + self._copy_end(sequence, len(found))
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed, sequence.prompt_len)
            if self._caches_prefixes and sequence.first_logit == len(sequence.token_ids) - 1:
                self.num_queried_tokens += len(sequence.token_ids)
                self.num_hit_tokens += sequence.num_computed
            if found and self.on_shared is not None:  # one that was preempted finds its own blocks again
                self.on_shared(sequence)
        self._waiting.remove(sequence)
        self._started.append(sequence)
        self._started.sort(key=self._arrival)
        return True

    def _copy_end(self, sequence: Sequence, index: int) -> int:
        """Fill block `index` of a sequence that continues another one with what was kept of that one's end.

        Returns the number of its tokens that need not be computed.
        """
        known = sequence.token_ids[index * self._block_size : sequence.first_logit]
        if not self._caches_prefixes or self.copy_block is None or sequence.prompt_len == len(sequence.token_ids):
            return 0
        if (end := self._pool.find_end(self._digest_before(sequence, index))) is None:
            return 0
        block, tokens = end
        equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(known, tokens, strict=False)))
        return equal if equal and self.copy_block(block, sequence.blocks[index]) else 0

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """Return the blocks that hold the sequence's beginning. The first position with needed logits is not in them."""
        blocks: list[int] = []
        if self._caches_prefixes:
            sequence.digests = self._digests(sequence, sequence.token_ids)
            for digest in sequence.digests[: sequence.first_logit // self._block_size]:
                block = self._pool.find(digest)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def _computed_by(self, sequence: Sequence, index: int) -> Sequence | None:
        """Return a started sequence that is computing block `index` of this one, which can then share it."""
        if index >= min(len(sequence.digests), sequence.first_logit // self._block_size):
            return None
        wanted = sequence.digests[index]
        for other in self._started:
            if other.num_computed < (index + 1) * self._block_size and other.digests[index : index + 1] == [wanted]:
                return other
        return None

    def _digests(self, sequence: Sequence, token_ids: list[int]) -> list[bytes]:
        return self.digests(token_ids, sequence.cache_key, sequence.digests)

    def digests(self, token_ids: list[int], cache_key: bytes, known: list[bytes]) -> list[bytes]:
        """Return the digest of each full block of these tokens, the first of which are `known`."""
        secret = {} if self.secret is None else {"secret": self.secret}
        return block_digests(token_ids, self._block_size, cache_key=cache_key, known=known, **secret)

    def _digest_before(self, sequence: Sequence, index: int) -> bytes:
        """Return the digest of all tokens before block `index`."""
        if index:
            return sequence.digests[index - 1]
        return text_digest(sequence.cache_key, *(() if self.secret is None else (self.secret,)))

    def _missing(self, sequence: Sequence, length: int) -> int:
        """Number of blocks that the sequence needs in addition for `length` tokens."""
        return max(0, -(-length // self._block_size) - len(sequence.blocks))

    def _grow(self, sequence: Sequence, length: int) -> None:
        if missing := self._missing(sequence, length):
            sequence.meter_blocks()
            sequence.blocks += self._pool.allocate(missing)

    def _free(self, sequence: Sequence) -> None:
        sequence.meter_blocks()
        self._pool.free(sequence.blocks)
        sequence.blocks = []

    def _arrival(self, sequence: Sequence) -> int:
        return self._arrivals[sequence.request_id]

    # Chunks

    def _next_token(self, sequence: Sequence, max_draft: int) -> SequenceChunk:
        """Return the chunk for the last known token, with as much of the draft as there is room for."""
        length = len(sequence.token_ids)
        draft = sequence.draft[: max(0, min(max_draft, sequence.max_len - length - 1))]
        while draft and self._missing(sequence, length + len(draft)) > self._pool.num_free:
            draft.pop()
        self._grow(sequence, length + len(draft))
        return SequenceChunk(
            sequence, length - 1, [sequence.token_ids[-1], *draft], 1 + len(draft), num_draft=len(draft)
        )

    def _prefill(self, budget: int, *, may_start: bool) -> list[SequenceChunk]:
        """Return chunks of prompts with at most `budget` tokens in all. `may_start` is about waiting sequences."""
        candidates = self._candidates() if may_start else self._unfinished()
        if not self._takes_partial_prompts:
            return self._whole_prompts(candidates, budget)
        first = next(candidates, None)
        if first is None:
            return []
        shares = {first: min(first.num_left, max(1, budget // 2))}
        left = budget - shares[first]
        while left > 0 and (sequence := next(candidates, None)) is not None:
            shares[sequence] = min(sequence.num_left, left)
            left -= shares[sequence]
        shares[first] += min(left, first.num_left - shares[first])
        return [_prompt_chunk(sequence, count) for sequence, count in shares.items()]

    @staticmethod
    def _whole_prompts(sequences: Iterator[Sequence], budget: int) -> list[SequenceChunk]:
        """Return whole prompts until the budget is spent. One that exceeds it is computed if no other prompt is."""
        chunks: list[SequenceChunk] = []
        while budget > 0 and (sequence := next(sequences, None)) is not None:
            if chunks and sequence.num_left > budget:
                break
            chunks.append(_prompt_chunk(sequence, sequence.num_left))
            budget -= sequence.num_left
        return chunks

    def _unfinished(self) -> Iterator[Sequence]:
        return (sequence for sequence in self._started if not _generates(sequence))

    def _candidates(self) -> Iterator[Sequence]:
        """Yield the sequences with prompts to compute: the one that came first, then those with the least left.

        A waiting sequence is started when it is yielded. If the one that came first has to wait for free blocks, no
        other is started, so that it gets them. If it has to wait for the prefix of another one, that one goes first.
        """
        order = sorted([*self._unfinished(), *self._waiting], key=self._arrival)
        order[1:] = sorted(order[1:], key=lambda sequence: sequence.num_left)
        for position, sequence in enumerate(order):
            if sequence.blocks:
                yield sequence
                continue
            if len(self._started) >= self._max_num_seqs:
                continue
            found = self._cached_blocks(sequence)
            other = self._computed_by(sequence, len(found))
            if other is not None:
                if position == 0 and other in order:
                    order.remove(other)  # further back, so the iteration goes on with the next one
                    yield other
            elif self._start(sequence, found):
                yield sequence
            elif position == 0:
                yield from (other for other in order[1:] if other.blocks)
                return


def _generates(sequence: Sequence) -> bool:
    """Tell whether everything but the last known token has been computed."""
    return sequence.num_left == 1 and sequence.num_computed > 0


def _prompt_chunk(sequence: Sequence, count: int) -> SequenceChunk:
    start = sequence.num_computed
    stop = start + count
    return SequenceChunk(
        sequence, start, sequence.token_ids[start:stop], max(0, stop - max(start, sequence.first_logit))
    )
