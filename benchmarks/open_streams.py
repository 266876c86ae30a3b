"""A thousand open streams: how fast a new one starts, how late tokens are, and what each stream costs."""

from __future__ import annotations

import statistics
import threading
from itertools import pairwise
from pathlib import Path

from front_end import ECHO
from http_load import invocation, run_load
from report import PAIRED_HEADER, Paired, print_table
from servers import Server, fastapi_server, lmi_server

STREAMS = 1000
PACE = 1.0
"""Tokens per second of each stream."""

TOKENS = 20
STARTS = 100.0
"""Streams that start per second."""

REQUEST = invocation("The quick brown fox jumps over the lazy dog. ", max_new_tokens=TOKENS, ignore_eos_token=True)


def bench_open_streams(directory: Path) -> None:
    """Print first bytes, delays, memory and CPU time of streams that are open at the same time."""
    options = ECHO | {"option.max_rolling_batch_size": STREAMS, "option.echo_tokens_per_second": PACE}
    with lmi_server(directory / "streams", options) as ours:
        own = _Measured(ours)
    with fastapi_server(directory / "streams-fastapi", own.answer, pace=PACE) as peer:
        others = _Measured(peer)
    print_table(
        f"{STREAMS:,} streams at {PACE:g} token/s each, {STARTS:g} of them starting per second",
        PAIRED_HEADER,
        [
            Paired([own.first_byte], [others.first_byte]).row("first byte, 99th percentile", "ms", scale=1e3),
            Paired([own.delay], [others.delay]).row("delay between tokens, 99th percentile", "ms", scale=1e3),
            Paired([own.memory], [others.memory]).row("memory of the web worker", "kB/stream", scale=1e-3),
            Paired([own.cpu], [others.cpu]).row("CPU of the web worker", "us/token", scale=1e6),
        ],
    )


class _Measured:
    """Runs the streams on a server once. Times are in seconds, memory in bytes per stream, CPU time per token.

    Raises `RuntimeError` unless all streams have the same `answer`, with a record per token.
    """

    def __init__(self, server: Server) -> None:
        worker = server.web_worker
        resident: list[int] = []
        all_open = threading.Timer(STREAMS / STARTS + 1, lambda: resident.append(worker.resident_bytes))
        cpu, memory = worker.cpu_seconds, worker.resident_bytes
        all_open.start()
        load = run_load(server.port, [REQUEST] * STREAMS, STREAMS, interval=1 / STARTS)
        self.answer = load.answers[0].body
        if any(answer.body != self.answer for answer in load.answers) or self.answer.count(b"\n") != TOKENS:
            raise RuntimeError("an answer has other bytes than the first one had")
        self.cpu = (worker.cpu_seconds - cpu) / (STREAMS * TOKENS)
        self.memory = (resident[0] - memory) / STREAMS
        self.first_byte = _percentile_99([answer.first_byte for answer in load.answers])
        self.delay = _percentile_99(
            [later - earlier - 1 / PACE for answer in load.answers for earlier, later in pairwise(answer.arrivals)]
        )


def _percentile_99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
