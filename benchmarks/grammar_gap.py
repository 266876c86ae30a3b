"""What bad grammars cost other clients: the gaps between a stream's tokens while such grammars are rejected."""

from __future__ import annotations

import http.client
import itertools
import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from machine import fastest_dtype
from model_prompts import default_model
from report import PAIRED_HEADER, Paired, Target, print_table
from servers import Server, lmi_server

ROUNDS = 3
NEW_TOKENS = 150
GAP = Target(2.0, at_most=True)

SERVED: dict[str, dict[str, object]] = {
    "scheduler": {},
    "vllm": {
        "option.dtype": fastest_dtype(),
        "option.enforce_eager": "true",
        "option.kv_cache_memory_bytes": 1 << 30,
        "option.max_model_len": 2048,
    },
}


def pathological() -> list[dict[str, Any]]:
    """Return TGI grammars that would take forever, a very long time or all memory to compile.

    They are two regexes, a schema with a huge array, and a deeply nested schema.
    """
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(8):
        nested = {"type": "object", "properties": dict.fromkeys("abc", nested)}
    endless = {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}
    return [
        {"type": "regex", "value": "(x{1,1000}){1,1000}"},
        {"type": "regex", "value": "(a+)+(b+)+" * 50},
        {"type": "json", "value": {"type": "object", "properties": {"a": endless}}},
        {"type": "json", "value": nested},
    ]


def bench_grammar_gap(directory: Path) -> None:
    """Print the median and 99th percentile of the gaps with and without bad grammars, for each engine with grammars."""
    model = default_model()
    rows = []
    for engine, options in SERVED.items():
        properties: dict[str, object] = {"option.rolling_batch": engine, "option.model_id": model, **options}
        median, tail = Paired(), Paired()
        with lmi_server(directory / engine, properties) as server:
            _gaps(server)  # warm up
            for _ in range(ROUNDS):
                alone = _gaps(server)
                with _Trouble(server):
                    disturbed = _gaps(server)
                for figure, at in ((median, 0.5), (tail, 0.99)):
                    figure.ours.append(_quantile(disturbed, at))
                    figure.peer.append(_quantile(alone, at))
        rows.append(median.row(f"{engine}, median gap", "ms", scale=1e3, target=GAP))
        rows.append(tail.row(f"{engine}, 99th percentile", "ms", scale=1e3, target=GAP))
    print_table(
        "A stream beside others' pathological grammars",
        PAIRED_HEADER,
        rows,
        f"One stream of {NEW_TOKENS} tokens; the peer is the same stream alone, in the same run.",
    )


class _Trouble:
    """Sends the grammars one by one in an endless loop until the block ends."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for number, grammar in enumerate(pathological()):
                if self._ended.is_set():
                    return
                body = {"inputs": str(number), "parameters": {"grammar": grammar, "max_new_tokens": 2}}
                _post(self._server, "/generate", body).read()


def _gaps(server: Server) -> list[float]:
    """Return the seconds between the tokens of one stream."""
    body = {
        "inputs": "The river",
        "parameters": {"max_new_tokens": NEW_TOKENS, "ignore_eos_token": True},
        "stream": True,
    }
    answer = _post(server, "/invocations", body)
    times = []
    while answer.readline():
        times.append(time.perf_counter())
    if len(times) != NEW_TOKENS:
        raise RuntimeError(f"{NEW_TOKENS} tokens were to come, not {len(times)}")
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _post(server: Server, path: str, body: object) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def _quantile(values: list[float], at: float) -> float:
    return statistics.quantiles(values, n=100)[round(at * 100) - 1]
