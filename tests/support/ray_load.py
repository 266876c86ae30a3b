"""Clients that stream and ask all the time, while something behind the server they ask dies or is replaced."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable

import msgspec
import requests
from serving import Server

_WORDS = "The quick brown fox jumps over the lazy dog. " * 3
_PAUSE = 0.1
_CALM = 10
"""So many requests in a row succeed once a fault is over."""


class Result(msgspec.Struct, frozen=True):
    """What became of a request. `error` is "" if its whole text has arrived."""

    started: float
    ended: float
    is_stream: bool
    error: str


class MixedLoad:
    """Streams, one after the other, and short requests on connections that are kept.

    Each text is another one, and each answer is compared with it: `echo` answers with the prompt. The streams have
    different lengths, so at any time all but one or two of them are running.
    """

    def __init__(self, server: Server, *, streams: int = 6, short: int = 2) -> None:
        self.results: list[Result] = []
        self._server = server
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(length,))
            for length in (*range(60, 60 + 10 * streams, 10), *(0,) * short)
        ]

    def __enter__(self) -> MixedLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.error]

    def wait_for_streams(self, number: int = 6) -> None:
        """Wait until so many more streams have ended, whole or not."""
        before = sum(result.is_stream for result in self.results)
        self._wait_until(lambda: sum(result.is_stream for result in self.results) >= before + number)

    def seconds_until_calm(self, fault: float) -> float:
        """Wait until new requests succeed again after a fault, and return how long that took."""

        def calm() -> bool:
            after = sorted((each for each in list(self.results) if each.started > fault), key=lambda each: each.started)
            last = max((position for position, each in enumerate(after) if each.error), default=-1)
            good = [each.ended for each in after[last + 1 :]]  # all short requests may hang on a machine that is silent
            found[:] = sorted(good)[:1]
            return len(good) >= _CALM

        found: list[float] = []
        self._wait_until(calm)
        return found[0] - fault

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.results[-20:]
            time.sleep(0.05)

    def _repeat(self, length: int) -> None:
        with requests.Session() as session:
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    error = self._ask(session, length)
                except requests.RequestException as caught:
                    error = repr(caught)
                self.results.append(Result(started, time.monotonic(), length > 0, error))
                time.sleep(_PAUSE)

    def _ask(self, session: requests.Session, length: int) -> str:
        text = f"{next(self._numbers)} {_WORDS[:length]}"
        body = {"inputs": text, "parameters": {"max_new_tokens": 1000}, "stream": length > 0}
        answer = session.post(f"{self._server.url}/invocations", json=body, timeout=60)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text[:200]}"
        found = json.loads(answer.text.splitlines()[-1])["generated_text"]
        return "" if found == text else f"{found!r} instead of {text!r}"
