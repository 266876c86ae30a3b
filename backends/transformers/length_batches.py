"""Chooses which inputs share a forward pass: inputs of similar length, because the shorter ones are padded."""

from __future__ import annotations

from collections.abc import Sequence


def plan_batches(lengths: Sequence[int], max_tokens: int, call_cost: int) -> list[list[int]]:
    """Split inputs into batches. Each batch is a list of positions in `lengths`, longest input first.

    A batch has at most `max_tokens` tokens, padding included, unless it is a single input. Its padding takes at most
    `call_cost` tokens, which is the cost of one more forward pass.
    """
    batches: list[list[int]] = []
    longest = padding = 0
    for position in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        added = longest - lengths[position]
        if batches and longest * (len(batches[-1]) + 1) <= max_tokens and padding + added <= call_cost:
            batches[-1].append(position)
            padding += added
        else:
            batches.append([position])
            longest, padding = lengths[position], 0
    return batches


def next_batch(lengths: Sequence[int], max_tokens: int, call_cost: int) -> list[int]:
    """Return the batch with the first input, which has waited longest. So no input waits for ever."""
    return next(batch for batch in plan_batches(lengths, max_tokens, call_cost) if 0 in batch)
