"""The rolling batch over a paged KV cache gives the model's own logits, whatever the blocks and the chunks are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CONFIGS, MAX_LEN, VOCAB_SIZE, make_model

from backends.paged.sequence import Sequence, SequenceChunk
from backends.transformers import attention, layout
from backends.transformers.attention import ATTENTION_NAME
from backends.transformers.kv_cache import BLOCK_SIZE, KVCache
from backends.transformers.lora_layers import LoraLayers
from backends.transformers.memory_errors import memory_errors
from backends.transformers.rolling import RollingRunner, group_sizes

NUM_BLOCKS = 40


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rolling(name: str, num_blocks: int = NUM_BLOCKS) -> RollingRunner:
    model = make_model(name)
    model.set_attn_implementation(ATTENTION_NAME)
    return RollingRunner(model, num_blocks, LoraLayers(model, {}))


class Driver:
    """Assigns blocks, computes chunks and compares their logits with the model's own."""

    def __init__(self, name: str, blocks: list[int]) -> None:
        self.model = make_model(name)
        self.runner = rolling(name)
        self.free = list(blocks)
        self.users: dict[int, int] = {}
        self.sequences: list[Sequence] = []

    def add(self, token_ids: list[int], like: Sequence | None = None) -> Sequence:
        """Start a sequence, with the full blocks of another one that has the same beginning."""
        sequence = Sequence(str(len(self.sequences)), token_ids, MAX_LEN)
        if like is not None:
            shared = min(like.num_computed, len(token_ids) - 1) // BLOCK_SIZE
            sequence.blocks = like.blocks[:shared]
            sequence.num_computed = shared * BLOCK_SIZE
            for block in sequence.blocks:
                self.users[block] += 1
        self.sequences.append(sequence)
        return sequence

    def step(self, parts: dict[Sequence, tuple[int, list[int]]]) -> None:
        """Compute a number of tokens of some sequences, with drafts for those that then have no more."""
        chunks = []
        for sequence, (count, draft) in parts.items():
            start, stop = sequence.num_computed, min(sequence.num_computed + count, len(sequence.token_ids))
            drafted = draft if stop == len(sequence.token_ids) else []
            token_ids = [*sequence.token_ids[start:stop], *drafted]
            while len(sequence.blocks) * BLOCK_SIZE < start + len(token_ids):
                sequence.blocks.append(self.free.pop())
                self.users[sequence.blocks[-1]] = 1
            chunks.append(SequenceChunk(sequence, start, token_ids, len(token_ids), num_draft=len(drafted)))
        logits = self.runner.forward(chunks)
        end = 0
        for chunk in chunks:
            got = logits[end : end + chunk.num_logits]
            end += chunk.num_logits
            with torch.inference_mode():
                known = chunk.sequence.token_ids[: chunk.start] + chunk.token_ids
                expected = self.model(input_ids=torch.tensor([known])).logits[0, chunk.start :]
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
            chunk.sequence.num_computed = chunk.stop - chunk.num_draft
        assert end == logits.shape[0]

    def remove(self, sequence: Sequence) -> None:
        self.runner.release(sequence)
        self.sequences.remove(sequence)
        for block in sequence.blocks:
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)


tokens = st.integers(3, VOCAB_SIZE - 1)


@pytest.mark.parametrize("name", CONFIGS)
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_any_schedule_gives_the_models_own_logits(name: str, data: st.DataObject) -> None:
    """Chunks of any size, drafts that turn out wrong, shared blocks, blocks in any order, and reused or reclaimed ones."""
    driver = Driver(name, data.draw(st.permutations(range(NUM_BLOCKS))))
    for _ in range(data.draw(st.integers(1, 8), label="steps")):
        if len(driver.sequences) < 5 and data.draw(st.booleans(), label="add"):
            like = data.draw(st.sampled_from([None, *driver.sequences]), label="like")
            beginning = [] if like is None else like.token_ids[:70]
            driver.add(beginning + data.draw(st.lists(tokens, min_size=1, max_size=75 - len(beginning))), like)
        parts = {}
        for sequence in driver.sequences:
            if sequence.num_left == 0:
                sequence.append(data.draw(tokens))
            room = MAX_LEN - len(sequence.token_ids)
            draft = data.draw(st.lists(tokens, max_size=min(room, 4)), label="draft")
            if room > 1 and data.draw(st.booleans(), label="computes"):
                parts[sequence] = data.draw(st.integers(1, 50), label="count"), draft
        if parts:
            driver.step(parts)
        if driver.sequences and data.draw(st.integers(0, 4)) == 0:
            driver.remove(data.draw(st.sampled_from(driver.sequences)))
            if data.draw(st.booleans(), label="reclaim"):
                driver.runner.reclaim(driver.free)


@pytest.mark.parametrize("name", ["llama", "mistral_sliding_window"])
@pytest.mark.parametrize("in_place", [True, False])
def test_both_ways_to_read_blocks(name: str, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, where adjacent blocks are read without copying them, and copied. Sharers read the same blocks."""
    if in_place:
        monkeypatch.setattr(layout, "_MIN_RUN", 2)
    else:
        monkeypatch.setattr(attention, "_is_faster_in_place", lambda *_: False)
    rng = random.Random(7)
    driver = Driver(name, [*range(20, 32), 5, 3, *range(12)][::-1])
    first = driver.add([rng.randrange(3, VOCAB_SIZE) for _ in range(70)])
    driver.step({first: (70, [])})
    others = [driver.add([*first.token_ids[:66], 9 + n], first) for n in range(3)]
    others.append(driver.add([5, 6, 7]))
    driver.step({sequence: (70, []) for sequence in others})
    for _ in range(12):
        for sequence in driver.sequences:
            sequence.append(rng.randrange(3, VOCAB_SIZE))
        driver.step({sequence: (1, [4, 8][:n]) for n, sequence in enumerate(driver.sequences)})


def test_a_failed_sequence_spoils_neither_the_batch_nor_the_next_owner_of_its_blocks() -> None:
    """Token 99's embedding is NaN. Whoever shares its block still fails."""
    driver = Driver("llama", list(range(NUM_BLOCKS))[::-1])
    driver.runner._model.get_input_embeddings().weight.data[99] = math.nan
    good = driver.add([5, 6, 7])
    bad = Sequence("bad", [99] * 40, MAX_LEN)
    bad.blocks = [30, 31]
    driver.step({good: (3, [])})
    good.append(8)
    good_chunk = SequenceChunk(good, 3, [8], 1)
    logits = driver.runner.forward([good_chunk, SequenceChunk(bad, 0, bad.token_ids, 1)])
    assert logits[0].isfinite().all()
    assert logits[1].isnan().all()
    good.num_computed = 4
    bad.failed = True
    driver.runner.release(bad)

    sharer = Sequence("sharer", [99] * 32 + [4, 5], MAX_LEN)
    sharer.blocks = [30, 0]
    assert driver.runner.forward([SequenceChunk(sharer, 32, [4, 5], 1)]).isnan().all()

    driver.free += [31, 30]
    heir = driver.add([10, 11, 12])
    driver.step({heir: (3, [])})
    assert heir.blocks == [30]
    for token in range(40, 75):
        heir.append(token)
        driver.step({heir: (1, [])})
    assert heir.blocks == [30, 31]


def test_reclaimed_blocks_take_no_memory() -> None:
    cache = KVCache(512)
    keys = torch.ones(64, 512 * BLOCK_SIZE // 8, 16)
    before = resident_bytes()
    blocks = torch.arange(512 * BLOCK_SIZE // 8) // BLOCK_SIZE
    index = (blocks * 64 + torch.arange(64)[:, None]) * BLOCK_SIZE + torch.arange(512 * BLOCK_SIZE // 8) % BLOCK_SIZE
    stored, _ = cache.write(0, keys, keys, index.flatten())
    assert cache.block_bytes == 2 * 64 * BLOCK_SIZE * 16 * 4
    used = 64 * cache.block_bytes
    assert 0.9 * used < resident_bytes() - before < 2 * used, "only written blocks take memory"
    cache.reclaim(range(1, 64))
    assert resident_bytes() - before < 0.5 * used
    assert (stored[0] == 1).all()
    assert (stored[1:64] == 0).all()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    "message", ["[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: not enough memory"]
)
def test_out_of_memory_is_a_memory_error(message: str) -> None:
    with pytest.raises(MemoryError, match="not enough"), memory_errors():
        raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="shapes"), memory_errors():
        raise RuntimeError("shapes")
    with pytest.raises(MemoryError), memory_errors():
        torch.empty(2**60)


def test_chunks_can_be_computed_again_after_running_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver("llama", list(range(NUM_BLOCKS)))
    sequence = driver.add([5, 6, 7, 8])
    model: Any = driver.runner._model
    handle = model.model.layers[1].register_forward_hook(lambda *_: torch.empty(2**60))
    with pytest.raises(MemoryError):
        driver.step({sequence: (4, [])})
    handle.remove()
    driver.step({sequence: (4, [])})


@given(lengths=st.lists(st.integers(1, 5000), max_size=40), call_cost=st.integers(0, 5000))
def test_group_sizes(lengths: list[int], call_cost: int) -> None:
    lengths.sort(reverse=True)
    sizes = group_sizes(lengths, call_cost)
    assert sum(sizes) == len(lengths)
    start = read = 0
    for size in sizes:
        read += size * lengths[start] + call_cost
        start += size
    assert read <= sum(length + call_cost for length in lengths), "worse than each sequence by itself"
