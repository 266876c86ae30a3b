"""Waiting for a condition, and recording what `/ping` answers in the meantime."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable

import requests
from serving import Server


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Fail if the condition is not true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {timeout} s"
        time.sleep(0.01)


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
