"""The HTTP side alone: our server with the echo backend, against FastAPI writing the same bytes from memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from http_load import Load, invocation, run_load
from report import PAIRED_HEADER, Paired, Target, print_table, row_without_peer
from servers import Server, fastapi_server, lmi_server

TOKENS = 128
ROUNDS = 7
REQUESTS = {32: 512, 256: 1024}
"""The number of streams per round, by concurrency. Before each round comes a burst with one stream per connection."""

ECHO: dict[str, object] = {"option.rolling_batch": "echo", "option.max_rolling_batch_size": 512}
REQUEST = invocation("The quick brown fox jumps over the lazy dog. ", max_new_tokens=TOKENS, ignore_eos_token=True)

SPEED = Target(0.8)
FIRST_BYTE = Target(150, of_ratio=False, at_most=True)

PACE = 20
PACED_STREAMS = 256
PACED_REQUEST = invocation("The quick brown fox jumps over the lazy dog. ", max_new_tokens=PACE, ignore_eos_token=True)
"""A request that takes one second on an engine that generates `PACE` tokens per second for each stream."""


def bench_front_end(directory: Path) -> None:
    """Print tokens per second, slowest first byte and CPU time for each concurrency."""
    with lmi_server(directory / "echo", ECHO) as ours:
        expected = run_load(ours.port, [REQUEST], 1).answers[0].body
        with fastapi_server(directory / "fastapi", expected) as peer:
            measured = {streams: _measure(ours, peer, streams, expected) for streams in REQUESTS}
    paced = _paced_first_byte(directory)
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
    name = f"{PACED_STREAMS} streams at {PACE} tokens/s each, slowest first byte"
    rows.append(row_without_peer(name, paced, "ms", scale=1e3, target=FIRST_BYTE))
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
        """Run a round and add its results. Raises `RuntimeError` if an answer is not `expected`."""
        burst = run_load(server.port, [REQUEST] * streams, streams)
        _check(burst, expected)
        self.first_byte.append(burst.slowest_first_byte)
        worker, engine = server.web_worker, server.engine
        worker_before, engine_before = worker.cpu_seconds, engine.cpu_seconds if engine else 0.0
        load = run_load(server.port, [REQUEST] * REQUESTS[streams], streams)
        _check(load, expected)
        tokens = REQUESTS[streams] * TOKENS
        self.tokens_per_second.append(load.tokens_per_second)
        self.records_per_write.append(load.records_per_chunk)
        self.worker_cpu.append((worker.cpu_seconds - worker_before) / tokens)
        self.engine_cpu.append(((engine.cpu_seconds if engine else 0.0) - engine_before) / tokens)


def _measure(ours: Server, peer: Server, streams: int, expected: bytes) -> tuple[Rounds, Rounds]:
    own, others = Rounds(), Rounds()
    for server in (ours, peer):
        run_load(server.port, [REQUEST] * streams, streams)  # warm up
    for _ in range(ROUNDS):
        own.run(ours, streams, expected)
        others.run(peer, streams, expected)
    return own, others


def _paced_first_byte(directory: Path) -> list[float]:
    """Return the slowest first byte of each burst in seconds, on an engine as slow as one with a model."""
    with lmi_server(directory / "paced", ECHO | {"option.echo_tokens_per_second": PACE}) as server:
        bursts = [run_load(server.port, [PACED_REQUEST] * PACED_STREAMS, PACED_STREAMS) for _ in range(ROUNDS + 1)]
    return [burst.slowest_first_byte for burst in bursts[1:]]


def _check(load: Load, expected: bytes) -> None:
    if any(answer.body != expected for answer in load.answers) or expected.count(b"\n") != TOKENS:
        raise RuntimeError("an answer has other bytes than the first one had")
