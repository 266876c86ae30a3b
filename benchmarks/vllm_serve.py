"""Our server on vLLM against `vllm serve`: the same engine, model and options, one client on `/invocations` of both."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from http_load import Load, invocation, post, run_load
from report import PAIRED_HEADER, Paired, Target, print_table
from rolling_batch import CONCURRENCY, NEW_TOKENS, PROMPT_TOKENS, Prompt, make_prompts
from servers import Server, lmi_server, vllm_server

from lmi_handlers.engine.model_store import default_cache_dir, resolve_model

ROUNDS = 3
STARTS = 3

SPEED = Target(1.1)
FIRST_TOKEN = Target(0.9, at_most=True)
READY = Target(0.6, at_most=True)

OPTIONS: dict[str, object] = {
    "dtype": "bfloat16",
    "max_model_len": 2048,
    "max_num_seqs": 256,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 30,
}
"""vLLM's own names, which are options of ours too."""


def bench_vllm(directory: Path) -> None:
    """Print tokens a second, time to first token and seconds to ready beside those of `vllm serve`."""
    model = resolve_model(
        None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ), report=lambda _: None
    )
    properties = {"option.rolling_batch": "vllm", "option.model_id": model}
    properties |= {f"option.{name}": str(value).lower() for name, value in OPTIONS.items()}
    prompts = make_prompts(model)
    ready = Paired()
    for _ in range(STARTS):
        with lmi_server(directory / "ours", properties) as ours:
            ready.ours.append(ours.seconds_to_ready)
        with vllm_server(directory / "vllm", model, OPTIONS) as peer:
            ready.peer.append(peer.seconds_to_ready)
    with lmi_server(directory / "ours", properties) as ours, vllm_server(directory / "vllm", model, OPTIONS) as peer:
        measured = {n: _rounds(ours, peer, str(model), prompts, n) for n in CONCURRENCY}
    rows = []
    for n in CONCURRENCY:
        speed, first_token = measured[n]
        rows.append(speed.row(f"{n} concurrent", "tokens/s", target=SPEED))
        rows.append(first_token.row(f"{n} concurrent, median first token", "ms", scale=1e3, target=FIRST_TOKEN))
    rows.append(ready.row("start to ready", "s", target=READY))
    print_table(
        f"vLLM: SmolLM2-135M in bfloat16, eager, {PROMPT_TOKENS} prompt and {NEW_TOKENS} new tokens, streamed",
        PAIRED_HEADER,
        rows,
        "The peer is `vllm serve`. Both are asked on /invocations, ours in LMI's schema and with the log probability of each "
        "token in the answer, as LMI has it, the peer in OpenAI's and without.",
    )


def _rounds(ours: Server, peer: Server, model: str, prompts: list[Prompt], concurrency: int) -> tuple[Paired, Paired]:
    """Four requests a connection for the few, one for the many: about as long each."""
    speed, first_token = Paired(), Paired()
    texts = [text for text, _ in prompts[:concurrency]] * (4 if concurrency < 32 else 1)
    for number in range(ROUNDS + 1):
        lmi = [invocation(text, max_new_tokens=NEW_TOKENS, ignore_eos_token=True) for text in texts]
        openai = [
            post(
                {
                    "model": model,
                    "prompt": text,
                    "max_tokens": NEW_TOKENS,
                    "ignore_eos": True,
                    "temperature": 0,
                    "stream": True,
                }
            )
            for text in texts
        ]
        own, other = run_load(ours.port, lmi, concurrency), run_load(peer.port, openai, concurrency)
        _check(own, b'{"token"', len(texts))
        _check(other, b'"text":', len(texts))
        if number:  # the first is for warming up
            tokens = len(texts) * NEW_TOKENS
            speed.ours.append(tokens / own.seconds)
            speed.peer.append(tokens / other.seconds)
            first_token.ours.append(statistics.median(answer.first_byte for answer in own.answers))
            first_token.peer.append(statistics.median(answer.first_byte for answer in other.answers))
    return speed, first_token


def _check(load: Load, mark: bytes, requests: int) -> None:
    tokens = sum(answer.body.count(mark) for answer in load.answers)
    if tokens != requests * NEW_TOKENS:
        raise RuntimeError(f"{requests * NEW_TOKENS} tokens were to be made, not {tokens}")
