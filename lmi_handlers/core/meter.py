"""Counts a request's share of the engine, and the share that others have paid for."""

from __future__ import annotations

import msgspec


class Meter(msgspec.Struct):
    """The usage of a request so far, over all its sequences.

    `engine_time` is its share of the time that the engine's steps took, in seconds. `kv_block_time` adds up how long each
    of its blocks of the KV cache was held, in seconds, or is None if the engine does not tell. A block that several
    sequences share counts for each of them.
    """

    engine_time: float = 0.0
    kv_block_time: float | None = None

    def plus(self, other: Meter) -> Meter:
        """Return the sum of two requests."""
        known = [time for time in (self.kv_block_time, other.kv_block_time) if time is not None]
        return Meter(self.engine_time + other.engine_time, sum(known) if known else None)


class Paid(msgspec.Struct, frozen=True, array_like=True):
    """The part of an answer that others pay who get the same one: its tokens, and its `Meter`.

    `overlap` is the number of seconds that they have paid after the arrival of the request that pays the rest. An estimate
    needs it.
    """

    tokens: int = 0
    engine_time: float = 0.0
    kv_block_time: float | None = None
    overlap: float = 0.0
