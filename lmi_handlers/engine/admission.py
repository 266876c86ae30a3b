"""Decides when waiting sequences may start. This is the only difference between rolling and dynamic batching."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class Admission(ABC):
    """Decides how many waiting sequences start now.

    `takes_turns` is true if requests with several sequences take turns. Otherwise each request starts all its sequences
    before the next one starts.
    """

    takes_turns: ClassVar[bool]

    @abstractmethod
    def room(self, *, waiting: int, oldest_wait: float, running: int) -> int:
        """Return how many sequences may start now. `oldest_wait` is how long the oldest one has waited."""

    @abstractmethod
    def wait(self, oldest_wait: float) -> float | None:
        """Return the seconds after which `room` may change without an arrival. None if only arrivals matter."""


class RollingBatch(Admission):
    """Continuous batching: a sequence starts as soon as fewer than `max_num_seqs` are running."""

    takes_turns = True

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs

    def room(self, *, waiting: int, oldest_wait: float, running: int) -> int:  # noqa: ARG002  only places matter
        """Return the number of free places in the batch, at most `waiting`."""
        return min(waiting, self._max_num_seqs - running)

    def wait(self, oldest_wait: float) -> float | None:  # noqa: ARG002  only places matter here too
        """Return None: only arrivals and finished sequences change the answer."""
        return None


class DynamicBatch(Admission):
    """LMI's dynamic batching: up to `batch_size` sequences start together once the previous batch has finished.

    A batch starts when it is complete, or when its first sequence has waited for `max_batch_delay` seconds.
    """

    takes_turns = False  # a batch is filled request by request, in order of arrival

    def __init__(self, batch_size: int, max_batch_delay: float) -> None:
        self._batch_size = batch_size
        self._max_batch_delay = max_batch_delay

    def room(self, *, waiting: int, oldest_wait: float, running: int) -> int:
        """Return the size of the next batch, 0 while it may not start yet."""
        if running or not waiting:
            return 0
        if waiting >= self._batch_size or oldest_wait >= self._max_batch_delay:
            return min(waiting, self._batch_size)
        return 0

    def wait(self, oldest_wait: float) -> float | None:
        """Return the rest of the first sequence's delay."""
        return max(0.0, self._max_batch_delay - oldest_wait)
