"""Our server with vLLM against `vllm serve`.

Both have the same engine, model and options, and are called on `/invocations`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from pathlib import Path

from engines import CONCURRENCY, NEW_TOKENS, PROMPT_TOKENS
from http_load import LoadResult, invocation, post, run_load
from machine import fastest_dtype
from model_prompts import Prompt, default_model, make_prompts
from report import PAIRED_HEADER, Paired, Target, print_table
from servers import Server, lmi_server, vllm_server

ROUNDS = 3
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')

SPEED = Target(1.1)
FIRST_TOKEN = Target(0.9, at_most=True)
READY = Target(0.6, at_most=True)

OPTIONS: dict[str, object] = {
    "dtype": fastest_dtype(),
    "max_model_len": 2048,
    "max_num_seqs": 256,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 30,
}
"""Options under vLLM's own names, which our server accepts too."""


def bench_vllm(directory: Path) -> None:
    """Print tokens per second, time to first token and seconds to ready, next to those of `vllm serve`."""
    model = default_model()
    properties = {"option.rolling_batch": "vllm", "option.model_id": model}
    properties |= {f"option.{name}": str(value).lower() for name, value in OPTIONS.items()}
    prompts = make_prompts(model, max(CONCURRENCY), PROMPT_TOKENS)
    ready = Paired()
    measured = {n: (Paired(), Paired()) for n in CONCURRENCY}
    for _ in range(ROUNDS):
        # Run one server at a time, because an idle `vllm serve` polls and would slow the other one down.
        with lmi_server(directory / "ours", properties) as ours:
            ready.ours.append(ours.seconds_to_ready)
            for n, (speed, first_token) in measured.items():
                load = _load(ours, [_lmi(text) for text in _texts(prompts, n)], _lmi_tokens, n)
                speed.ours.append(len(load.answers) * NEW_TOKENS / load.seconds)
                first_token.ours.append(statistics.median(answer.first_byte for answer in load.answers))
        with vllm_server(directory / "vllm", model, OPTIONS) as peer:
            ready.peer.append(peer.seconds_to_ready)
            for n, (speed, first_token) in measured.items():
                load = _load(peer, [_openai(text, model) for text in _texts(prompts, n)], _openai_tokens, n)
                speed.peer.append(len(load.answers) * NEW_TOKENS / load.seconds)
                first_token.peer.append(statistics.median(answer.first_byte for answer in load.answers))
    rows = []
    for n in CONCURRENCY:
        speed, first_token = measured[n]
        rows.append(speed.row(f"{n} concurrent", "tokens/s", target=SPEED))
        rows.append(first_token.row(f"{n} concurrent, median first token", "ms", scale=1e3, target=FIRST_TOKEN))
    rows.append(ready.row("start to ready", "s", target=READY))
    print_table(
        f"vLLM: SmolLM2-135M in {OPTIONS['dtype']}, eager, {PROMPT_TOKENS} prompt and {NEW_TOKENS} new tokens, streamed",
        PAIRED_HEADER,
        rows,
        "The peer is `vllm serve`. Both are asked on /invocations, ours in LMI's schema and with the log probability of each "
        "token in the answer, as LMI has it, the peer in OpenAI's and without.",
    )


def _texts(prompts: list[Prompt], concurrency: int) -> list[str]:
    """Return four requests per connection below 32 connections, otherwise one, so that all loads take about as long."""
    return [text for text, _ in prompts[:concurrency]] * (4 if concurrency < 32 else 1)


def _lmi(text: str) -> bytes:
    return invocation(text, max_new_tokens=NEW_TOKENS, ignore_eos_token=True)


def _openai(text: str, model: Path) -> bytes:
    sampling = {"max_tokens": NEW_TOKENS, "ignore_eos": True, "temperature": 0}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return post({"model": str(model), "prompt": text} | stream | sampling)


def _lmi_tokens(body: bytes) -> int:
    return body.count(b'{"token"')


def _openai_tokens(body: bytes) -> int:
    # `vllm serve` joins the tokens of a record that it could not write in time, so records do not tell.
    return int(_COMPLETION_TOKENS.findall(body)[-1])


def _load(server: Server, requests: list[bytes], tokens_of: Callable[[bytes], int], concurrency: int) -> LoadResult:
    """Run the same load twice and return the second result. The first run is a warm-up.

    Raises `RuntimeError` if a run does not have the expected number of tokens.
    """
    for _ in range(2):
        load = run_load(server.port, requests, concurrency)
        tokens = sum(tokens_of(answer.body) for answer in load.answers)
        if tokens != len(requests) * NEW_TOKENS:
            raise RuntimeError(f"{len(requests) * NEW_TOKENS} tokens were to be made, not {tokens}")
    return load
