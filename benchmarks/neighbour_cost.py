"""What a long prompt, or too little memory for all, costs the other requests."""

from __future__ import annotations

import itertools
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from http_load import LoadResult, invocation, run_load
from model_prompts import Prompt, default_model, make_prompts
from report import PAIRED_HEADER, Paired, Target, print_table, row_without_peer
from servers import Process, Server, lmi_server

CHATS = 15
CHAT_TOKENS = 128
LONG_TOKENS = 6000
ROUNDS = 2
TIMEOUT = 300.0
SETTLED = 2.0
"""Seconds after which all chats have been streaming for a while."""
PROBE_AFTER = 0.5
"""Seconds from the long prompt to the chat that is sent beside it."""

GIVEN_BACK = 90.0
"""Maximum seconds until memory is measured again. The engine gives back what has been unused for 60."""

LIMIT = "256M"
LIMITED_REQUESTS = 64
LIMITED_PROMPT_TOKENS = 192
LIMITED_NEW_TOKENS = 64

GAP = Target(2.0, at_most=True)
FIRST_TOKEN = Target(1.0, of_ratio=False, at_most=True)
MEMORY = Target(1.05, at_most=True)
EQUAL = Target(LIMITED_REQUESTS, of_ratio=False)


def bench_neighbours(directory: Path) -> None:
    """Print what chats notice of a long prompt, the engine's memory around it, and answers under a limit."""
    model = default_model()
    gap, first_token, long_prompt = Paired(), Paired(), []
    with lmi_server(directory / "neighbours", {"option.rolling_batch": "auto"}) as server:
        backend, engine = server.backend, _engine(server)
        _round(server, model, "warm-up", LONG_TOKENS // 10)
        alone = [_round(server, model, f"alone {number}", 0) for number in range(ROUNDS)]
        level = engine.resident_bytes
        engine.reset_peak()
        beside = [_round(server, model, f"beside {number}", LONG_TOKENS) for number in range(ROUNDS)]
        peak = engine.peak_resident_bytes
        afterwards, waited = _memory_afterwards(engine, level)
    for figures, side in ((beside, "ours"), (alone, "peer")):
        for figure in figures:
            getattr(gap, side).append(statistics.quantiles(figure.gaps, n=100)[98])
            getattr(first_token, side).append(figure.first_token)
    long_prompt = [figure.long_prompt for figure in beside]
    more = [ours - peer for ours, peer in zip(first_token.ours, first_token.peer, strict=True)]
    memory = Paired([afterwards], [level])
    print_table(
        f"Neighbours on {backend}: {CHATS} chats beside a prompt of {LONG_TOKENS} tokens",
        PAIRED_HEADER,
        [
            gap.row("99th percentile of the token gaps", "ms", scale=1e3, target=GAP),
            first_token.row("first token of one more chat", "s"),
            row_without_peer("first token of one more chat, difference", more, "s", target=FIRST_TOKEN),
            row_without_peer("first token of the long prompt", long_prompt, "s"),
            Paired([peak], [level]).row("engine's memory, peak", "MB", scale=1e-6),
            memory.row(f"engine's memory, {waited:.0f} s afterwards", "MB", scale=1e-6, target=MEMORY),
        ],
        "The peer is the same without the long prompt, for memory its level before.",
    )
    _bench_limit(directory, model)


@dataclass
class Round:
    """Seconds: gaps between the tokens of the chats, and from the request to the first token."""

    first_token: float = 0.0
    long_prompt: float = 0.0
    gaps: list[float] = field(default_factory=list)


def _round(server: Server, model: Path, seed: str, long_tokens: int) -> Round:
    """Stream chats, and beside them a long prompt (unless its length is 0) and then one more chat.

    Chats that end are followed by others until the long prompt and the other chat have been answered.
    """
    ended = threading.Event()
    *others, one_more = make_prompts(model, CHATS + 1, 64, seed)

    def endless() -> Iterator[bytes]:
        for text, _ in itertools.cycle(others):
            if ended.is_set():
                return
            yield _stream(text, CHAT_TOKENS)

    figures = Round()
    with ThreadPoolExecutor() as threads:
        chats = threads.submit(run_load, server.port, endless(), CHATS, TIMEOUT)
        try:
            time.sleep(SETTLED)
            began = time.perf_counter()
            if long_tokens:
                text = make_prompts(model, 1, long_tokens, seed)[0][0]
                began = time.perf_counter()
                long_prompt = threads.submit(run_load, server.port, [_stream(text, 1)], 1, TIMEOUT)
            time.sleep(PROBE_AFTER)
            probe = run_load(server.port, [_stream(one_more[0], 8)], 1, TIMEOUT)
            figures.first_token = probe.slowest_first_byte
            if long_tokens:
                figures.long_prompt = long_prompt.result().slowest_first_byte
            ended_at = time.perf_counter() if long_tokens else float("inf")
        finally:
            ended.set()
        figures.gaps = list(_gaps(chats.result(), began, ended_at))
    return figures


def _gaps(load: LoadResult, began: float, ended: float) -> Iterator[float]:
    """Yield the gaps between the tokens of each answer that began between these times."""
    for answer in load.answers:
        for earlier, later in itertools.pairwise(answer.arrivals):
            if began <= earlier < ended:
                yield later - earlier


def _stream(text: str, tokens: int) -> bytes:
    return invocation(text, max_new_tokens=tokens, ignore_eos_token=True)


def _memory_afterwards(engine: Process, level: int) -> tuple[int, float]:
    """Return the engine's memory as soon as it is back to its level, or after `GIVEN_BACK`, and the seconds waited."""
    started = time.perf_counter()
    while (memory := engine.resident_bytes) > level * MEMORY.bound and time.perf_counter() - started < GIVEN_BACK:
        time.sleep(1)
    return memory, time.perf_counter() - started


def _engine(server: Server) -> Process:
    engine = server.engine
    assert engine is not None
    return engine


# Too little memory for all


def _bench_limit(directory: Path, model: Path) -> None:
    prompts = make_prompts(model, LIMITED_REQUESTS, LIMITED_PROMPT_TOKENS, "limited")
    properties: dict[str, object] = {
        "option.rolling_batch": "auto",
        "option.dtype": "fp32",  # with integers, an answer depends on what else is in the batch
        "option.max_rolling_batch_size": LIMITED_REQUESTS,
    }
    unlimited, free_seconds, _, _ = _answers(directory / "unlimited", properties, prompts)
    limit = {"option.kv_cache_memory_bytes": LIMIT}
    limited, seconds, preemptions, peak = _answers(directory / "limited", properties | limit, prompts)
    equal = sum(ours == theirs for ours, theirs in zip(limited, unlimited, strict=True))
    print_table(
        f"{LIMITED_REQUESTS} requests at once with option.kv_cache_memory_bytes={LIMIT}, "
        f"{LIMITED_PROMPT_TOKENS} prompt and {LIMITED_NEW_TOKENS} new tokens, greedy, in float32",
        PAIRED_HEADER,
        [
            row_without_peer("answered", [len(limited)], "requests", target=EQUAL),
            row_without_peer("answers equal to those without the limit", [equal], "requests", target=EQUAL),
            Paired([seconds], [free_seconds]).row("time", "s"),
            row_without_peer("preemptions", [preemptions], ""),
            row_without_peer("engine's memory, peak above its level when loaded", [peak], "MB", scale=1e-6),
        ],
        "The peer is the same server without the limit.",
    )


def _answers(
    directory: Path, properties: dict[str, object], prompts: list[Prompt]
) -> tuple[list[str], float, float, float]:
    """Return the texts, the seconds, the preemptions and the bytes by which the engine grew.

    Raises `RuntimeError` if a request failed or the engine was replaced.
    """
    requests = [
        invocation(text, stream=False, max_new_tokens=LIMITED_NEW_TOKENS, ignore_eos_token=True) for text, _ in prompts
    ]
    with lmi_server(directory, properties) as server:
        engine = _engine(server)
        level = engine.resident_bytes
        load = run_load(server.port, requests, len(requests), TIMEOUT)
        if _engine(server).pid != engine.pid:
            raise RuntimeError("the engine was replaced")
        time.sleep(0.3)  # `/metrics` is up to a tenth of a second old
        preemptions = server.counter("vllm:num_preemptions_total")
        texts = [json.loads(answer.body)["generated_text"] for answer in load.answers]
        return texts, load.seconds, preemptions, engine.peak_resident_bytes - level
