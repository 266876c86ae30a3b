"""Runs jobs in limited processes, in turns, so that short jobs do not wait for long ones."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from backends.limited_process import Expired, LimitedProcess, lower_priority
from lmi_handlers.core.errors import RequestFailed

TURNS = (0.1, 1.0, 2.0, math.inf)
"""CPU seconds per turn. A job that needs more than its turn starts again with the next one."""

OVERTAKING = 10
"""The number of shorter turns that may overtake a longer one that waits for the same process."""

Result = TypeVar("Result")
Given = TypeVar("Given")

LimitedJob = Callable[[LimitedProcess, float], "Result | Onward[Result]"]
"""Uses the process for at most the given CPU seconds. Raises `Expired` if more would help."""


@dataclass(frozen=True, slots=True)
class Onward(Generic[Result]):
    """What a job returns if its rest is for another pool."""

    pool: LimitedPool
    job: LimitedJob[Result]


@dataclass(frozen=True, slots=True)
class _Entry:
    job: LimitedJob[Any]
    future: Future[Any]


class LimitedPool:
    """Two processes: one for the first two turns of each job and one for the last two.

    In each process shorter turns come first, but only up to a limit, so that no job waits forever. Jobs are not tracked
    per client, so one client with many jobs delays the others. A job gets no further turn if its future is cancelled.
    """

    def __init__(self, name: str, module: str, setup: bytes = b"") -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._queues: list[deque[_Entry]] = [deque() for _ in TURNS]
        self._processes = (LimitedProcess(module, setup), LimitedProcess(module, setup))
        self._threads = [
            threading.Thread(target=self._work, args=arguments, name=f"{name}-{kind}", daemon=True)
            for kind, *arguments in (("short", self._processes[0], 0), ("long", self._processes[1], 2))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: LimitedJob[Result], future: Future[Result] | None = None) -> Future[Result]:
        """Queue a job and return the future of its result: the given one, or else a new one."""
        future = Future() if future is None else future
        self._put(0, _Entry(job, future))
        return future

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for queue in self._queues:
            while queue:
                entry = queue.popleft()
                if entry.future.set_running_or_notify_cancel():
                    entry.future.set_exception(RequestFailed("the engine has been closed"))
        for process in self._processes:
            process.close()

    def _put(self, turn: int, entry: _Entry) -> None:
        with self._changed:
            self._queues[turn].append(entry)
            self._changed.notify_all()

    def _work(self, process: LimitedProcess, first: int) -> None:
        """Run the jobs that wait for turns `first` and `first` + 1."""
        lower_priority()
        shorter, longer = self._queues[first : first + 2]
        overtaken = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or shorter or longer)
                if self._closed:
                    return
                if shorter and not (longer and overtaken == OVERTAKING):
                    turn, entry = first, shorter.popleft()
                    overtaken += bool(longer)
                else:
                    turn, entry = first + 1, longer.popleft()
                    overtaken = 0
            if not entry.future.cancelled():
                self._run(process, turn, entry)

    def _run(self, process: LimitedProcess, turn: int, entry: _Entry) -> None:
        try:
            result = entry.job(process, TURNS[turn])
        except Expired:
            self._put(turn + 1, entry)
        except Exception as error:  # noqa: BLE001  the error goes to whoever waits
            if entry.future.set_running_or_notify_cancel():
                entry.future.set_exception(error)
        else:
            if isinstance(result, Onward):
                result.pool.submit(result.job, entry.future)
            elif entry.future.set_running_or_notify_cancel():
                entry.future.set_result(result)


class Shared(Generic[Given]):
    """One future with several waiters. It is cancelled when all of them have given up."""

    def __init__(self, future: Future[Given]) -> None:
        self._future = future
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self, deliver: Callable[[Future[Given], Future[Result]], None]) -> Future[Result] | None:
        """Return a future that `deliver` completes when the shared one is done, or None if that is cancelled."""
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
