"""The HTTP side alone: our server with the echo backend, against FastAPI writing the same bytes from memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from http_load import LoadResult, invocation, run_load
from report import PAIRED_HEADER, Paired, Target, print_table
from servers import Server, fastapi_server, lmi_server

TOKENS = 128
ROUNDS = 7
REQUESTS = {32: 512, 256: 1024}
"""The number of streams per round, by concurrency. Before each round comes a burst with one stream per connection."""

ECHO: dict[str, object] = {"option.rolling_batch": "echo", "option.max_rolling_batch_size": 512}
REQUEST = invocation("The quick brown fox jumps over the lazy dog. ", max_new_tokens=TOKENS, ignore_eos_token=True)

SPEED = Target(1.0)
FIRST_BYTE = Target(0.5, at_most=True)

PACE = 20
PACED_STREAMS = 256
PACED_ROUNDS = 5
PACED_ECHO = ECHO | {"option.echo_tokens_per_second": PACE}
"""An engine as fast as one with a model: every record is written as soon as its token arrives."""


def bench_front_end(directory: Path) -> None:
    """Print tokens per second, slowest first byte and CPU time for each concurrency."""
    with lmi_server(directory / "echo", ECHO) as ours:
        expected = run_load(ours.port, [REQUEST], 1).answers[0].body
        with fastapi_server(directory / "fastapi", expected) as peer:
            measured = {streams: _measure(ours, peer, streams, expected) for streams in REQUESTS}
    paced_peer = fastapi_server(directory / "paced-fastapi", expected, pace=PACE)
    with lmi_server(directory / "paced", PACED_ECHO) as ours, paced_peer as peer:
        paced = _measure_bursts(ours, peer, expected)
    rows: list[list[str]] = []
    notes: list[str] = []
    for streams, (own, others) in measured.items():
        speed = Paired(own.tokens_per_second, others.tokens_per_second)
        first_byte = Paired(own.first_byte, others.first_byte)
        cpu = Paired(own.worker_cpu, others.worker_cpu)
        target = FIRST_BYTE if streams == max(REQUESTS) else None
        rows.append(speed.row(f"{streams} streams", "tokens/s", target=SPEED))
        rows.append(first_byte.row(f"{streams} streams, slowest first byte", "ms", scale=1e3, target=target))
        rows.append(cpu.row(f"{streams} streams, CPU of the web worker", "us/token", scale=1e6))
        notes.append(
            f"{streams} streams: our engine process takes {statistics.median(own.engine_cpu) * 1e6:.1f} us/token beside the "
            f"web worker; records in a write: ours {statistics.median(own.records_per_write):.1f}, "
            f"the peer's {statistics.median(others.records_per_write):.1f}."
        )
    own, others = paced
    name = f"{PACED_STREAMS} streams at {PACE} tokens/s each"
    first_byte, cpu = Paired(own.first_byte, others.first_byte), Paired(own.worker_cpu, others.worker_cpu)
    rows.append(first_byte.row(f"{name}, slowest first byte", "ms", scale=1e3))
    rows.append(cpu.row(f"{name}, CPU of the web worker", "us/token", scale=1e6))
    notes.append(
        f"{name}: our engine process takes {statistics.median(own.engine_cpu) * 1e6:.1f} us/token beside the web worker; "
        f"records in a write: ours {statistics.median(own.records_per_write):.1f}, "
        f"the peer's {statistics.median(others.records_per_write):.1f}."
    )
    print_table(
        f"Front end: echo, streams of {TOKENS} tokens, against FastAPI + uvicorn + uvloop", PAIRED_HEADER, rows, *notes
    )


@dataclass
class Rounds:
    """The results of one server at one concurrency, one entry per round. Times are in seconds, CPU times per token."""

    first_byte: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)
    worker_cpu: list[float] = field(default_factory=list)
    engine_cpu: list[float] = field(default_factory=list)
    records_per_write: list[float] = field(default_factory=list)

    def run(self, server: Server, streams: int, expected: bytes) -> None:
        """Run a round: a burst for the first byte, then a load. Raises `RuntimeError` if an answer is not `expected`."""
        burst = run_load(server.port, [REQUEST] * streams, streams)
        _check(burst, expected)
        self.first_byte.append(burst.slowest_first_byte)
        self._load(server, REQUESTS[streams], streams, expected)

    def run_burst(self, server: Server, streams: int, expected: bytes) -> None:
        """Run a round that is only a burst. Raises `RuntimeError` if an answer is not `expected`."""
        burst = self._load(server, streams, streams, expected)
        self.first_byte.append(burst.slowest_first_byte)

    def _load(self, server: Server, requests: int, streams: int, expected: bytes) -> LoadResult:
        worker, engine = server.web_worker, server.engine
        worker_before, engine_before = worker.cpu_seconds, engine.cpu_seconds if engine else 0.0
        load = run_load(server.port, [REQUEST] * requests, streams)
        _check(load, expected)
        tokens = requests * TOKENS
        self.tokens_per_second.append(load.tokens_per_second)
        self.records_per_write.append(load.records_per_chunk)
        self.worker_cpu.append((worker.cpu_seconds - worker_before) / tokens)
        self.engine_cpu.append(((engine.cpu_seconds if engine else 0.0) - engine_before) / tokens)
        return load


def _measure(ours: Server, peer: Server, streams: int, expected: bytes) -> tuple[Rounds, Rounds]:
    own, others = Rounds(), Rounds()
    for server in (ours, peer):
        run_load(server.port, [REQUEST] * streams, streams)  # warm up
    for _ in range(ROUNDS):
        own.run(ours, streams, expected)
        others.run(peer, streams, expected)
    return own, others


def _measure_bursts(ours: Server, peer: Server, expected: bytes) -> tuple[Rounds, Rounds]:
    own, others = Rounds(), Rounds()
    for server in (ours, peer):
        run_load(server.port, [REQUEST] * 8, 8)  # warm up
    for _ in range(PACED_ROUNDS):
        own.run_burst(ours, PACED_STREAMS, expected)
        others.run_burst(peer, PACED_STREAMS, expected)
    return own, others


def _check(load: LoadResult, expected: bytes) -> None:
    if any(answer.body != expected for answer in load.answers) or expected.count(b"\n") != TOKENS:
        raise RuntimeError("an answer has other bytes than the first one had")
