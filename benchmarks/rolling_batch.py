"""The rolling batch on the default model over HTTP, against transformers' own generation in a separate process."""

from __future__ import annotations

import json
import os
import random
import statistics
from pathlib import Path

import tokenizers
from http_load import Answer, invocation, run_load
from report import PAIRED_HEADER, Paired, Target, print_table
from servers import Responder, Server, lmi_server, responder

from lmi_handlers.engine.cache_dir import default_cache_dir
from lmi_handlers.engine.model_store import resolve_model

CONCURRENCY = (1, 8, 32)
PROMPT_TOKENS = 64
NEW_TOKENS = 64
ROUNDS = 3
"""Rounds against `generate`. `generate_batch` gets only one round, because it takes several times as long."""

SERVED: dict[str, object] = {"option.rolling_batch": "scheduler", "option.dtype": "bf16"}
TARGET = Target(1.4)
WORDS = ("time", "people", "way", "water", "day", "part", "place", "work", "life", "world", "house", "river", "night")


def bench_rolling_batch(directory: Path) -> None:
    """Print our and the peers' tokens per second at each concurrency. Only one of the processes works at a time."""
    with lmi_server(directory / "model", SERVED) as server:
        model = resolve_model(
            None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ), report=lambda _: None
        )
        prompts = make_prompts(model)
        arguments = [str(model), "generate", str(NEW_TOKENS)]
        with responder(directory / "generate", "peer_transformers.py", *arguments) as static:
            measured = {n: _rounds(server, static, prompts, n, ROUNDS, stream=False) for n in CONCURRENCY}
            streamed = {n: _rounds(server, static, prompts, n, ROUNDS, stream=True) for n in CONCURRENCY}
            threads = static.hello["threads"]
        arguments[1] = "generate_batch"
        with responder(directory / "generate_batch", "peer_transformers.py", *arguments) as continuous:
            continuously = {n: _rounds(server, continuous, prompts, n, 1, stream=False) for n in CONCURRENCY}
    rows = [measured[n].speed.row(f"{n} concurrent, against generate", "tokens/s", target=TARGET) for n in CONCURRENCY]
    rows += [streamed[n].speed.row(f"{n} concurrent, streamed, against generate", "tokens/s") for n in CONCURRENCY]
    rows += [continuously[n].speed.row(f"{n} concurrent, against generate_batch", "tokens/s") for n in CONCURRENCY]
    first = ", ".join(f"{statistics.median(streamed[n].first_byte) * 1e3:.0f} ms at {n}" for n in CONCURRENCY)
    print_table(
        f"Rolling batch: SmolLM2-135M in bfloat16, {PROMPT_TOKENS} prompt and {NEW_TOKENS} new tokens",
        PAIRED_HEADER,
        rows,
        f"The peers have the whole batch from the start and stream nothing; {threads} threads each. "
        f"Our slowest first token, at all starting at once: {first}.",
    )


class Figures:
    """Tokens per second at one concurrency, and our slowest first byte in seconds. One entry per round."""

    def __init__(self) -> None:
        self.speed = Paired()
        self.first_byte: list[float] = []


def _rounds(
    server: Server, peer: Responder, prompts: list[Prompt], concurrency: int, rounds: int, *, stream: bool
) -> Figures:
    figures = Figures()
    prompts = prompts[:concurrency]
    parameters = {"max_new_tokens": NEW_TOKENS, "ignore_eos_token": True, "details": True}
    for number in range(rounds + 1):
        requests = [invocation(text, stream=stream, **parameters) for text, _ in prompts]
        load = run_load(server.port, requests, concurrency)
        answer = peer.ask([token_ids for _, token_ids in prompts])
        tokens = concurrency * NEW_TOKENS
        if answer["tokens"] != tokens or sum(map(_generated_tokens, load.answers)) != tokens:
            raise RuntimeError(f"{tokens} tokens were to be made, not {answer['tokens']}")
        if number:  # the first round is a warm-up
            figures.speed.ours.append(tokens / load.seconds)
            figures.speed.peer.append(tokens / answer["seconds"])
            figures.first_byte.append(load.slowest_first_byte)
    return figures


def _generated_tokens(answer: Answer) -> int:
    details = json.loads(answer.body.splitlines()[-1])["details"]
    count: int = details["generated_tokens"]
    return count


Prompt = tuple[str, list[int]]


def make_prompts(model: Path) -> list[Prompt]:
    """Return one prompt per concurrent request. All are different and have `PROMPT_TOKENS` tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    words = random.Random(0)
    prompts: list[Prompt] = []
    for _ in range(max(CONCURRENCY)):
        text = "".join(f" {word}" for word in words.choices(WORDS, k=PROMPT_TOKENS))
        token_ids = tokenizer.encode(text).ids
        if len(token_ids) != PROMPT_TOKENS:
            raise RuntimeError(f"the prompt has {len(token_ids)} tokens, not {PROMPT_TOKENS}")
        prompts.append((text, token_ids))
    return prompts
