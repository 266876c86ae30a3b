"""What shared prefixes save: the turns of a conversation, and several samples of one prompt."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from http_load import Load, post, run_load
from model_prompts import default_model, make_prompts
from report import PAIRED_HEADER, Paired, Target, number, print_table
from servers import Server, lmi_server

SYSTEM_TOKENS = 1500
TURNS = 8
ANSWER_TOKENS = 32
SAMPLES = 8
ROUNDS = 2

LATER_TURNS = Target(0.15, at_most=True)
ONE_PREFILL = Target(1.25, at_most=True)
"""Of the prompt's tokens. The last ones, which do not fill a block, are computed for each sample."""

_QUERIES = "lmi_prefix_cache_queries_total"
_HITS = "lmi_prefix_cache_hits_total"
_METRICS_AGE = 0.3
"""Seconds until `/metrics` has what the engine has counted."""


def bench_conversation(directory: Path) -> None:
    """Print the time to the first token by turn and the cost of samples, with and without the prefix cache."""
    first, later, slowest, samples = Paired(), Paired(), Paired(), Paired()
    counted = False
    computed: list[float] = []
    prompt_tokens: list[float] = []
    for caching in (True, False):
        properties: dict[str, object] = {
            "option.rolling_batch": "auto",
            "option.enable_prefix_caching": str(caching).lower(),
        }
        with lmi_server(directory / f"caching-{caching}", properties) as server:
            _turns(server, "warm-up", turns=2)
            for number_ in range(ROUNDS):
                seconds = _turns(server, number_)
                for figure, value in (
                    (first, seconds[0]),
                    (later, statistics.median(seconds[1:])),
                    (slowest, max(seconds[1:])),
                ):
                    (figure.ours if caching else figure.peer).append(value)
                before = server.metrics()
                load = _samples(server, number_)
                time.sleep(_METRICS_AGE)
                after = server.metrics()
                (samples.ours if caching else samples.peer).append(load.seconds)
                if caching:
                    prompt_tokens.append(json.loads(load.answers[0].body)["usage"]["prompt_tokens"])
                    looked_up, found = (after[name] - before[name] for name in (_QUERIES, _HITS))
                    computed.append(looked_up - found)
                    counted = looked_up > 0
            backend = server.backend
    print_table(
        f"Conversation on {backend}: system prompt of {SYSTEM_TOKENS} tokens, with and without the prefix cache",
        PAIRED_HEADER,
        [
            first.row("turn 1, first token", "ms", scale=1e3),
            later.row(f"turns 2 to {TURNS}, first token, median", "ms", scale=1e3, target=LATER_TURNS),
            slowest.row(f"turns 2 to {TURNS}, first token, slowest", "ms", scale=1e3),
            samples.row(f"n={SAMPLES}, time", "s"),
            Paired(computed, prompt_tokens).row(f"n={SAMPLES}, prompt tokens computed", "tokens", target=ONE_PREFILL)
            if counted
            else [f"n={SAMPLES}, prompt tokens computed", "not counted", *[""] * 4],
        ],
        f"The peer is the same server with option.enable_prefix_caching=false. For the tokens computed it is the length of "
        f"the prompt, {number(statistics.median(prompt_tokens))} tokens.",
    )


def _turns(server: Server, seed: object, turns: int = TURNS) -> list[float]:
    """Have a conversation with a system prompt of its own. Return the seconds to the first token of each turn."""
    messages = _conversation(seed)
    seconds = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: what is {turn} more than {turn * 7}?"})
        body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True}
        answer = run_load(server.port, [post(body)], 1).answers[0]
        seconds.append(answer.first_byte)
        lines = (line for line in answer.body.splitlines() if line.startswith(b"data: {"))
        deltas = (json.loads(line[len(b"data: ") :])["choices"][0]["delta"] for line in lines)
        messages.append({"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)})
    return seconds


def _samples(server: Server, seed: object) -> Load:
    messages = [*_conversation(f"samples {seed}"), {"role": "user", "content": "Say something."}]
    body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 1, "n": SAMPLES, "seed": 1}
    return run_load(server.port, [post(body)], 1)


def _conversation(seed: object) -> list[dict[str, str]]:
    return [{"role": "system", "content": make_prompts(default_model(), 1, SYSTEM_TOKENS, seed)[0][0].strip()}]
