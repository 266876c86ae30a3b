"""What shared prefixes save: the turns of a conversation, and several samples of one prompt."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from http_load import LoadResult, post, run_load
from model_prompts import default_model, make_prompts
from report import PAIRED_HEADER, Paired, Target, print_table
from servers import Server, lmi_server

SYSTEM_TOKENS = 1500
TURNS = 8
ANSWER_TOKENS = 32
SAMPLES = 8
ROUNDS = 2

LATER_TURNS = Target(0.15, at_most=True)
ONE_PREFILL = Target(1.25, at_most=True)
"""Of the prompt's tokens. The last ones, which do not fill a block, are computed for each sample."""


@dataclass(frozen=True)
class Round:
    """One conversation, and one request for samples. Times are in seconds."""

    first_tokens: list[float]
    """The time to the first token, by turn."""
    samples: float
    samples_prompt: float
    """Tokens of the prompt that the samples share."""
    samples_computed: float | None
    """Tokens of it that the engine computed, if it counts them."""


def bench_conversation(directory: Path) -> None:
    """Print the time to the first token by turn and the cost of samples, with and without the prefix cache."""
    properties: dict[str, object] = {"option.rolling_batch": "auto"}
    with lmi_server(directory / "with", properties | {"option.enable_prefix_caching": "true"}) as server:
        cached = _rounds(server)
    with lmi_server(directory / "without", properties | {"option.enable_prefix_caching": "false"}) as server:
        computed = _rounds(server)
        backend = server.backend

    def paired(value: Callable[[Round], float]) -> Paired:
        return Paired([value(one) for one in cached], [value(one) for one in computed])

    later = paired(lambda one: statistics.median(one.first_tokens[1:]))
    samples_computed = [f"n={SAMPLES}, prompt tokens computed", "not counted", *[""] * 4]
    if counts := [one.samples_computed for one in cached if one.samples_computed is not None]:
        tokens = Paired(counts, [one.samples_prompt for one in cached])
        samples_computed = tokens.row(f"n={SAMPLES}, prompt tokens computed", "tokens", target=ONE_PREFILL)
    print_table(
        f"Conversation on {backend}: system prompt of {SYSTEM_TOKENS} tokens, with and without the prefix cache",
        PAIRED_HEADER,
        [
            paired(lambda one: one.first_tokens[0]).row("turn 1, first token", "ms", scale=1e3),
            later.row(f"turns 2 to {TURNS}, first token, median", "ms", scale=1e3, target=LATER_TURNS),
            paired(lambda one: max(one.first_tokens[1:])).row("the slowest of them", "ms", scale=1e3),
            samples_computed,
            paired(lambda one: one.samples).row(f"n={SAMPLES}, time", "s"),
        ],
        "The peer is the same server with option.enable_prefix_caching=false. For the prompt tokens computed, it is the "
        "length of the prompt.",
    )


def _rounds(server: Server) -> list[Round]:
    _turns(server, "warm-up", turns=2)
    return [_round(server, number) for number in range(ROUNDS)]


def _round(server: Server, seed: object) -> Round:
    first_tokens = _turns(server, seed)
    before = _looked_up_and_found(server)
    load = _samples(server, seed)
    looked_up, found = (after - then for after, then in zip(_looked_up_and_found(server), before, strict=True))
    prompt_tokens = json.loads(load.answers[0].body)["usage"]["prompt_tokens"]
    return Round(first_tokens, load.seconds, prompt_tokens, looked_up - found if looked_up else None)


def _looked_up_and_found(server: Server) -> tuple[float, float]:
    time.sleep(0.3)  # `/metrics` is up to a tenth of a second old
    return server.counter("vllm:prefix_cache_queries_total"), server.counter("vllm:prefix_cache_hits_total")


def _turns(server: Server, seed: object, turns: int = TURNS) -> list[float]:
    """Have a conversation with a system prompt of its own. Return the seconds to the first token of each turn."""
    messages = begun(seed, SYSTEM_TOKENS)
    return [take_turn(server, messages, turn, ANSWER_TOKENS) for turn in range(turns)]


def take_turn(server: Server, messages: list[dict[str, str]], turn: int, answer_tokens: int) -> float:
    """Ask a question, and add it and its answer to the conversation. Return the seconds to the first token."""
    messages.append({"role": "user", "content": f"Question {turn}: what is {turn} more than {turn * 7}?"})
    body = {"messages": messages, "max_tokens": answer_tokens, "temperature": 0, "stream": True}
    answer = run_load(server.port, [post(body)], 1).answers[0]
    lines = (line for line in answer.body.splitlines() if line.startswith(b"data: {"))
    deltas = (json.loads(line[len(b"data: ") :])["choices"][0]["delta"] for line in lines)
    messages.append({"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)})
    return answer.first_byte


def _samples(server: Server, seed: object) -> LoadResult:
    messages = [*begun(f"samples {seed}", SYSTEM_TOKENS), {"role": "user", "content": "Say something."}]
    body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 1, "n": SAMPLES, "seed": 1}
    return run_load(server.port, [post(body)], 1)


def begun(seed: object, system_tokens: int) -> list[dict[str, str]]:
    """Return a conversation that has only its system prompt, which is another one for each `seed`."""
    return [{"role": "system", "content": make_prompts(default_model(), 1, system_tokens, seed)[0][0].strip()}]
