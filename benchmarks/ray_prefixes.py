"""What `--routing prefix` saves: conversations on two replicas, whose caches hold less than all of them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conversation import begun, take_turn
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
"""How much of all conversations the KV cache of each replica holds: 256 MiB are 5,824 tokens of the default model."""


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
        for number in range(2 * REPLICAS):
            take_turn(server, begun(f"warm-up {number}", SYSTEM_TOKENS), 0, ANSWER_TOKENS)
        before = _prompt_and_cached(server)
        first_tokens = [seconds for turn, seconds in _talk(server) if turn]
        prompt, cached = (after - then for after, then in zip(_prompt_and_cached(server), before, strict=True))
    return Result(first_tokens, cached / prompt)


def _talk(server: Server) -> Iterator[tuple[int, float]]:
    """Have all conversations, a turn of each in random order. Yield the turn and its seconds to the first token."""
    conversations = [begun(seed, SYSTEM_TOKENS) for seed in range(CONVERSATIONS)]
    order = random.Random(0)
    for turn in range(TURNS):
        for messages in order.sample(conversations, CONVERSATIONS):
            yield turn, take_turn(server, messages, turn, ANSWER_TOKENS)


def _prompt_and_cached(server: Server) -> tuple[float, float]:
    time.sleep(2.5)  # a replica asks the others for their page once per second
    return server.counter("vllm:prompt_tokens_total"), server.counter("vllm:prompt_tokens_cached_total")
