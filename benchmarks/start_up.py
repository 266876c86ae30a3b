"""Start-up time and memory of a server, and whether its web workers load torch."""

from __future__ import annotations

from pathlib import Path

from front_end import ECHO, REQUEST, TOKENS
from http_load import invocation, run_load
from report import PAIRED_HEADER, Paired, Target, print_table, row_without_peer
from servers import fastapi_server, lmi_server

ROUNDS = 3
STREAMS = 256
MEGABYTE = 1e6

MEMORY = Target(120, of_ratio=False, at_most=True)


def bench_start_up(directory: Path) -> None:
    """Print the seconds from start to ready, and the resident memory after a load of 256 streams."""
    ready, memory = Paired(), Paired()
    torch_in_worker: list[bool] = []
    for _ in range(ROUNDS):
        with lmi_server(directory / "echo", ECHO) as server:
            ready.ours.append(server.seconds_to_ready)
            records = run_load(server.port, [REQUEST] * STREAMS, STREAMS).answers[0].body
            memory.ours.append(server.web_worker.resident_bytes)
            torch_in_worker.append(server.web_worker.maps("torch"))
        with fastapi_server(directory / "fastapi", records) as peer:
            ready.peer.append(peer.seconds_to_ready)
            run_load(peer.port, [REQUEST] * STREAMS, STREAMS)
            memory.peer.append(peer.web_worker.resident_bytes)
    model_ready: list[float] = []
    model_memory: list[float] = []
    engine_memory: list[float] = []
    for number in range(ROUNDS):
        with lmi_server(directory / "model", {}) as server:
            run_load(server.port, [invocation("Once upon a time", max_new_tokens=4)], 1)
            engine = server.engine
            assert engine is not None
            if number == 0:
                continue  # the first start may have converted the model or read it from disk
            model_ready.append(server.seconds_to_ready)
            model_memory.append(server.web_worker.resident_bytes)
            engine_memory.append(engine.resident_bytes)
            torch_in_worker.append(server.web_worker.maps("torch"))
    print_table(
        "Start and memory, against FastAPI + uvicorn",
        PAIRED_HEADER,
        [
            ready.row("echo: start to ready", "s"),
            memory.row(
                f"echo: web worker after {STREAMS} streams of {TOKENS}", "MB", scale=1 / MEGABYTE, target=MEMORY
            ),
            row_without_peer("SmolLM2-135M: start to ready", model_ready, "s"),
            row_without_peer("SmolLM2-135M: web worker", model_memory, "MB", scale=1 / MEGABYTE, target=MEMORY),
            row_without_peer("SmolLM2-135M: engine process", engine_memory, "MB", scale=1 / MEGABYTE),
        ],
        f"torch is among the libraries of a web worker: {'yes, it is: MISSED' if any(torch_in_worker) else 'no'}.",
    )
