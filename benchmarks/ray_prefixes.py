"""What `--routing prefix` saves: conversations on two replicas, whose caches hold less than all of them."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from http_load import post, run_load
from model_prompts import default_model, make_prompts
from ray_nodes import Cluster, ray_cluster, replicas
from report import number, print_table
from servers import Server

REPLICAS = 2
CONVERSATIONS = 10
TURNS = 6
SYSTEM_TOKENS = 700
ANSWER_TOKENS = 8
ROUTINGS = ("least", "prefix")
SIZES = {"all": "512M", "two thirds": "256M"}
"""How much of the conversations a replica's KV cache holds: 3 x 64 x 2 values of 4 bytes for each of 30 layers."""


@dataclass(frozen=True)
class Result:
    """The seconds to the first token of each request but the first of a conversation, and the share of cached tokens."""

    first_tokens: list[float]
    cached: float


def bench_ray_prefixes(directory: Path) -> None:
    """Print the share of prompt tokens that were cached, and the time to the first token, by routing and cache size."""
    rows = []
    with ray_cluster(directory) as cluster:
        for held, memory in SIZES.items():
            for routing in ROUTINGS:
                result = _measure(cluster, directory / f"{routing}-{memory}", routing, memory)
                tokens = sorted(result.first_tokens)
                late = statistics.quantiles(tokens, n=10)[-1]
                times = [number(1e3 * value) for value in (statistics.median(tokens), late)]
                rows.append([held, routing, f"{result.cached:.0%}", *times])
    print_table(
        f"{CONVERSATIONS} conversations of {TURNS} turns on {REPLICAS} replicas, one request at a time",
        ["a cache holds", "--routing", "cached", "first token, median, ms", "90th percentile"],
        rows,
        f"Each has a system prompt of {SYSTEM_TOKENS} tokens of its own. First turns are not in the times.",
    )


def _measure(cluster: Cluster, directory: Path, routing: str, memory: str) -> Result:
    properties: dict[str, object] = {
        "option.rolling_batch": "auto",
        "option.enable_prefix_caching": "true",
        "option.kv_cache_memory_bytes": memory,
    }
    with replicas(cluster, directory, properties, REPLICAS, "--routing", routing) as server:
        run_load(server.port, [_request([*_system("warm-up"), _user(0)])] * 4, 1)
        time.sleep(1.5)  # the page is up to a second old
        before = _prompt_and_cached(server)
        first_tokens = [seconds for turn, seconds in _talk(server) if turn]
        time.sleep(1.5)
        prompt, cached = (after - then for after, then in zip(_prompt_and_cached(server), before, strict=True))
    return Result(first_tokens, cached / prompt)


def _talk(server: Server) -> Iterator[tuple[int, float]]:
    """Have all conversations, a turn of each in random order. Yield the turn and its seconds to the first token."""
    conversations = [_system(seed) for seed in range(CONVERSATIONS)]
    order = random.Random(0)
    for turn in range(TURNS):
        for messages in order.sample(conversations, CONVERSATIONS):
            messages.append(_user(turn))
            answer = run_load(server.port, [_request(messages)], 1).answers[0]
            lines = (line for line in answer.body.splitlines() if line.startswith(b"data: {"))
            deltas = (json.loads(line[len(b"data: ") :])["choices"][0]["delta"] for line in lines)
            text = "".join(delta.get("content") or "" for delta in deltas)
            messages.append({"role": "assistant", "content": text})
            yield turn, answer.first_byte


def _request(messages: list[dict[str, str]]) -> bytes:
    return post({"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True})


def _system(seed: object) -> list[dict[str, str]]:
    return [{"role": "system", "content": make_prompts(default_model(), 1, SYSTEM_TOKENS, seed)[0][0].strip()}]


def _user(turn: int) -> dict[str, str]:
    return {"role": "user", "content": f"Question {turn}: what is {turn} more than {turn * 7}?"}


def _prompt_and_cached(server: Server) -> tuple[float, float]:
    return server.counter("vllm:prompt_tokens_total"), server.counter("vllm:prompt_tokens_cached_total")
