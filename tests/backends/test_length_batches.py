"""Which inputs share a forward pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backends.transformers.length_batches import next_batch, plan_batches

LENGTHS = st.lists(st.integers(1, 600), max_size=80)
LIMITS = {"max_tokens": st.integers(1, 4096), "call_cost": st.integers(0, 512)}


def padded(lengths: list[int], batch: list[int]) -> int:
    return len(batch) * max(lengths[position] for position in batch)


@given(lengths=LENGTHS, **LIMITS)
def test_every_input_is_in_one_batch_within_the_limits(lengths: list[int], max_tokens: int, call_cost: int) -> None:
    batches = plan_batches(lengths, max_tokens, call_cost)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or padded(lengths, batch) <= max_tokens
        assert padded(lengths, batch) - sum(lengths[position] for position in batch) <= call_cost


@given(lengths=LENGTHS, **LIMITS)
def test_the_first_input_is_always_in_the_next_batch(lengths: list[int], max_tokens: int, call_cost: int) -> None:
    """So every input is computed once, and none waits for ever."""
    waiting, computed = list(range(len(lengths))), []
    while waiting:
        batch = [waiting[place] for place in next_batch([lengths[i] for i in waiting], max_tokens, call_cost)]
        assert waiting[0] in batch
        computed += batch
        waiting = [position for position in waiting if position not in batch]
    assert sorted(computed) == list(range(len(lengths)))


def test_inputs_of_one_length_fill_the_batch() -> None:
    assert plan_batches([5] * 7, max_tokens=20, call_cost=0) == [[0, 1, 2, 3], [4, 5, 6]]


def test_padding_that_costs_more_than_a_call_is_avoided() -> None:
    assert plan_batches([10, 100, 90, 11], max_tokens=1000, call_cost=12) == [[1, 2], [3, 0]]
