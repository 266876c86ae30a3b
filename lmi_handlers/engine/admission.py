"""When waiting sequences may start: the one difference between rolling and dynamic batching."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class Admission(ABC):
    """Decides how many waiting sequences start now.

    `takes_turns`: whether requests with several sequences take turns, or each starts all of them before the next.
    """

    takes_turns: ClassVar[bool]

    @abstractmethod
    def room(self, *, waiting: int, oldest_wait: float, running: int) -> int:
        """Return how many sequences to take from the queue's head; `oldest_wait` is how long the oldest has waited."""

    @abstractmethod
    def wait(self, oldest_wait: float) -> float | None:
        """Seconds after which `room` may answer differently though nothing has arrived; None if only arrivals matter."""


class RollingBatch(Admission):
    """Continuous batching: a sequence starts as soon as fewer than `max_num_seqs` run."""

    takes_turns = True

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs

    def room(self, *, waiting: int, oldest_wait: float, running: int) -> int:  # noqa: ARG002  age does not matter here
        """The free places of the batch."""
        return min(waiting, self._max_num_seqs - running)

    def wait(self, oldest_wait: float) -> float | None:  # noqa: ARG002  only a finished sequence makes room
        """Nothing but an arrival or a finished sequence changes the answer."""
        return None


class DynamicBatch(Admission):
    """LMI's dynamic batching: up to `batch_size` prompts start together, `max_batch_delay` seconds after the first came."""

    takes_turns = False  # a batch is made of whole requests, in order of arrival

    def __init__(self, batch_size: int, max_batch_delay: float) -> None:
        self._batch_size = batch_size
        self._max_batch_delay = max_batch_delay

    def room(self, *, waiting: int, oldest_wait: float, running: int) -> int:
        """A whole batch, once the previous one is done."""
        if running or not waiting:
            return 0
        if waiting >= self._batch_size or oldest_wait >= self._max_batch_delay:
            return min(waiting, self._batch_size)
        return 0

    def wait(self, oldest_wait: float) -> float | None:
        """The rest of the first request's delay."""
        return max(0.0, self._max_batch_delay - oldest_wait)
