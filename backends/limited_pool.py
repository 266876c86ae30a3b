"""Jobs for processes with limits, in turns: whoever is soon done does not wait for those who are not."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from backends.limited_process import Expired, LimitedProcess
from backends.preparing import give_way

SHORT_TURNS = (0.1, 1.0)
"""Seconds of a processor. What needs more than these starts once more, in the other process, without a limit to its turn."""

Result = TypeVar("Result")
Given = TypeVar("Given")

Job = Callable[[LimitedProcess, float], Result]
"""Asks the process for at most so many seconds of a processor, and passes `Expired` on where more would have helped."""


@dataclass(order=True)
class _Entry:
    turn: int
    number: int
    job: Job[Any] = field(compare=False)
    future: Future[Any] = field(compare=False)


class LimitedPool:
    """Two processes: one for first and second turns, all first ones before any second; one for the last turns.

    A job whose future is cancelled gets no further turn.
    """

    def __init__(self, name: str, module: str, setup: bytes = b"") -> None:
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._short: list[_Entry] = []
        self._long: list[_Entry] = []
        self._processes = (LimitedProcess(module, setup), LimitedProcess(module, setup))
        self._threads = [
            threading.Thread(target=self._work, args=arguments, name=f"{name}-{kind}", daemon=True)
            for kind, *arguments in (
                ("short", self._processes[0], self._short),
                ("long", self._processes[1], self._long),
            )
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job[Result]) -> Future[Result]:
        """Line up."""
        future: Future[Result] = Future()
        self._put(_Entry(0, next(self._numbers), job, future))
        return future

    def close(self) -> None:
        """End the threads and the processes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for entry in (*self._short, *self._long):
            entry.future.cancel()
        for process in self._processes:
            process.close()

    def _put(self, entry: _Entry) -> None:
        with self._changed:
            heapq.heappush(self._short if entry.turn < len(SHORT_TURNS) else self._long, entry)
            self._changed.notify_all()

    def _work(self, process: LimitedProcess, queue: list[_Entry]) -> None:
        give_way()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or queue)
                if self._closed:
                    return
                entry = heapq.heappop(queue)
            if not entry.future.cancelled():
                self._run(process, entry)

    def _run(self, process: LimitedProcess, entry: _Entry) -> None:
        seconds = SHORT_TURNS[entry.turn] if entry.turn < len(SHORT_TURNS) else math.inf
        try:
            result = entry.job(process, seconds)
        except Expired:
            entry.turn += 1
            self._put(entry)
        except Exception as error:  # noqa: BLE001  it is whoever waits that has to know
            if entry.future.set_running_or_notify_cancel():
                entry.future.set_exception(error)
        else:
            if entry.future.set_running_or_notify_cancel():
                entry.future.set_result(result)


class Shared(Generic[Given]):
    """One future for many who wait; it is cancelled when all of them have given up."""

    def __init__(self, future: Future[Given]) -> None:
        self._future = future
        self._lock = threading.Lock()
        self._waiting = 0

    def wait(self, deliver: Callable[[Future[Given], Future[Result]], None]) -> Future[Result] | None:
        """Return a future that `deliver` is to complete once this one is; None where it has been cancelled already."""
        waiter: Future[Result] = Future()
        with self._lock:
            if self._future.cancelled():
                return None
            self._waiting += 1
        waiter.add_done_callback(self._leave)
        self._future.add_done_callback(lambda done: None if done.cancelled() else deliver(done, waiter))
        return waiter

    def _leave(self, waiter: Future[Any]) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting == 0 and waiter.cancelled():
                self._future.cancel()
