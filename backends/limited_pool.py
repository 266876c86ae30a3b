"""Jobs for processes with limits, in turns: whoever is soon done does not wait for those who are not."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from backends.limited_process import Expired, LimitedProcess
from backends.preparing import give_way
from lmi_handlers.core.errors import RequestFailed

TURNS = (0.1, 1.0, 2.0, math.inf)
"""Seconds of a processor. What needs more than its turn starts once more, with the next one."""

OVERTAKING = 10
"""How many shorter turns may pass a longer one that waits for the same process."""

Result = TypeVar("Result")
Given = TypeVar("Given")

Job = Callable[[LimitedProcess, float], Result]
"""Asks the process for at most so many seconds of a processor, and passes `Expired` on where more would have helped."""


@dataclass(frozen=True, slots=True)
class _Entry:
    job: Job[Any]
    future: Future[Any]


class LimitedPool:
    """Two processes, one for the first two turns of each job and one for the last two.

    In each of them shorter turns come first, up to a limit, so that nobody waits for ever. A job does not say whose it is: many
    of one client delay another's as those of many would. A job whose future is cancelled gets no further turn.
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

    def submit(self, job: Job[Result]) -> Future[Result]:
        """Line up."""
        future: Future[Result] = Future()
        self._put(0, _Entry(job, future))
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
        """Give turns `first` and `first` + 1."""
        give_way()
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

    @property
    def done(self) -> bool:
        """Whether nothing more is done for them."""
        return self._future.done()

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
