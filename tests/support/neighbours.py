"""What other clients notice while the server works on an expensive request."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import requests
from serving import Server

MAX_DELAY = 2.0
"""Maximum delay in seconds of a `/ping` or of a stream's next token. Without limits on the work, delays reached a minute."""

LATENESS = 5
"""The maximum grows by this multiple of this process's own longest delay, because the whole machine may stall."""

_START_SECONDS = 60.0


class Neighbours:
    """One client that pings continuously and one that reads a stream. Both are being served when the `with` block begins.

    The end of the block checks that neither had to wait. `grown_mib` is then the web worker's peak memory during the block
    minus its peak before.
    """

    def __init__(self, server: Server) -> None:
        self.grown_mib = 0.0
        self._server = server
        self._worker = server.web_worker().pid
        self._slowest_ping = self._longest_pause = self._lateness = 0.0
        self._pings = self._tokens = 0
        self._broken: list[str] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._ping, self._read, self._sleep)]

    def __enter__(self) -> Neighbours:
        Path(f"/proc/{self._worker}/clear_refs").write_text("5")  # forget the peak
        self._memory = self._peak_mib()
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._broken and (self._pings < 1 or self._tokens < 3):
            if time.monotonic() > deadline:
                self._broken.append(f"served too late: {self._pings} pings, {self._tokens} tokens")
            time.sleep(0.01)
        if self._broken:
            self._stop()
        assert not self._broken, self._broken
        self._slowest_ping = self._longest_pause = 0.0
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop()
        if kind is None:
            self.grown_mib = self._peak_mib() - self._memory
            max_delay = MAX_DELAY + LATENESS * self._lateness
            assert not self._broken, self._broken
            assert self._slowest_ping < max_delay
            assert self._longest_pause < max_delay

    def _peak_mib(self) -> float:
        status = Path(f"/proc/{self._worker}/status").read_text()
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) / 1024

    def _stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _ping(self) -> None:
        while not self._done.wait(0.005):
            began = time.monotonic()
            try:
                status = self._server.ping().status_code
            except requests.RequestException as error:
                self._broken.append(f"ping: {error}")
                return
            if status != 200:
                self._broken.append(f"ping: {status}")
            self._slowest_ping = max(self._slowest_ping, time.monotonic() - began)
            self._pings += 1

    def _read(self) -> None:
        body = {"inputs": "abcdefgh", "stream": True, "parameters": {"max_new_tokens": 100_000, "ignore_eos": True}}
        try:
            with self._server.invoke(body, stream=True) as answer:
                last = time.monotonic()
                for line in answer.iter_lines():
                    now = time.monotonic()
                    self._longest_pause, last = max(self._longest_pause, now - last), now
                    self._tokens += 1
                    if b'"text"' not in line or b"error" in line:
                        self._broken.append(line.decode())
                    if self._done.is_set():
                        return
            self._broken.append("the stream ended")
        except requests.RequestException as error:
            self._broken.append(f"stream: {error}")

    def _sleep(self) -> None:
        while not self._done.is_set():
            began = time.monotonic()
            time.sleep(0.01)
            self._lateness = max(self._lateness, time.monotonic() - began - 0.01)
