"""Waiting for a condition, and recording what `/ping` answers in the meantime."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable

import psutil
import requests
from serving import Server


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Fail if the condition is not true within `timeout` seconds. Asks less often while it takes longer."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < timeout, f"condition not met within {timeout} s"
        time.sleep(min(max(0.01, waited / 20), 0.05))


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, even if its parent has not noticed yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def still_running(processes: Iterable[psutil.Process], timeout: float = 30.0) -> list[psutil.Process]:
    """Wait until all of these have ended. Returns those that have not after so many seconds."""
    deadline = time.monotonic() + timeout
    while (alive := [process for process in processes if not has_ended(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


class Watch:
    """Polls `/ping` every 20 ms and keeps every answer. The last one is from after the end of the block."""

    def __init__(self, server: Server) -> None:
        self.answers: list[requests.Response] = []
        self._server = server
        self._stop = False
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._task = self._pool.submit(self._run)

    def _run(self) -> None:
        with requests.Session() as session:
            stopped = False
            while not stopped:
                stopped = self._stop
                self.answers.append(session.get(f"{self._server.url}/ping", timeout=60))
                time.sleep(0.02)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._task.result()
        self._pool.shutdown()

    @property
    def statuses(self) -> list[int]:
        """Statuses in order, without repetitions."""
        codes = [answer.status_code for answer in self.answers]
        return [code for position, code in enumerate(codes) if position == 0 or code != codes[position - 1]]
