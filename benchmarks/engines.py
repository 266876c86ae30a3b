"""Tokens per second of our engines, and of prompts, against the engines that others would take for the same model.

All are loaded, and take turns, so that a temporary slowdown of the machine affects all. Only one of them runs at a time:
two that share the cores slow each other down many times over.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from http_load import invocation, post, run_load
from machine import fastest_dtype
from model_prompts import Prompt, default_gguf, default_model, make_prompts
from random_gguf import SHAPES, TYPES, write_random_gguf
from report import Target, number, print_table
from servers import Server, llama_cpp_server, lmi_server, responder, vllm_server

CONCURRENCY = (1, 8, 32)
PROMPT_TOKENS = 64
NEW_TOKENS = 64
WARM_UP_TOKENS = 8
ROUNDS = 3
ROUNDS_LIMIT = 20.0
"""An engine that has taken this many seconds for a load gets no further round of it."""

AGAINST_BEST = Target(1.0)
PROMPTS_AGAINST_BEST = Target(1.2)
SCHEDULER = "ours, rolling_batch=scheduler"
SCHEDULER_AGAINST_GENERATE = {1: Target(1.2), 8: Target(1.2), 32: Target(1.0)}
AGAINST_GENERATE = {1: Target(3.0), 8: Target(3.0)}

Settings = dict[str, Any]
"""Arguments of `_ours`."""

Generate = Callable[[list[Prompt], int], float]
"""Generates that many tokens for each of the prompts, all at once. Returns the seconds. Raises if there are fewer."""


@dataclass(frozen=True)
class Load:
    """Requests that are sent at once. `tokens` are counted, in all."""

    column: int
    streams: int
    prompt_tokens: int
    new_tokens: int
    tokens: int


STREAMS = [Load(n, n, PROMPT_TOKENS, NEW_TOKENS, n * NEW_TOKENS) for n in CONCURRENCY]
PROMPTS = [Load(n, 1, n, 1, n) for n in (500, 1500, 6000)]


@dataclass(frozen=True)
class Running:
    """An engine that is ready. `details` are a few words such as its dtype."""

    details: str
    generate: Generate


@dataclass(frozen=True)
class Peer:
    """An engine of others. `package` is the import name of what must be installed."""

    name: str
    package: str
    start: Callable[[Path], AbstractContextManager[Running]]


def bench_engines(directory: Path) -> None:
    """Print tokens per second of the default model at each concurrency."""
    ours = OURS | {SCHEDULER: {"rolling_batch": "scheduler"}}
    _compare(directory, _streams_title("SmolLM2-135M"), ours, _default_peers(), STREAMS)


def bench_prompts(directory: Path) -> None:
    """Print the tokens per second of single prompts of the default model, until their first token."""
    longest = max(load.prompt_tokens for load in PROMPTS)
    peers = _gguf_peers(default_gguf(), slots=1, slot_tokens=longest + 32)
    title = "Prompts: SmolLM2-135M, prompt tokens/s by length of a prompt"
    _compare(directory, title, PROMPT_SETTINGS, peers, PROMPTS, PROMPTS_AGAINST_BEST)


def bench_larger_models(directory: Path) -> None:
    """Print the same for models with random weights in larger shapes, made for it and deleted afterwards."""
    for shape in SHAPES:
        for bits in TYPES:
            with tempfile.TemporaryDirectory(dir=directory) as made:
                gguf_file = Path(made) / "model.gguf"
                write_random_gguf(shape, bits, gguf_file, default_gguf())
                ours = {name: settings | {"gguf_file": gguf_file} for name, settings in OURS.items()}
                title = _streams_title(f"{shape.name}'s shape, {bits}")
                _compare(Path(made), title, ours, _gguf_peers(gguf_file), STREAMS)


def _streams_title(model: str) -> str:
    return f"Engines: {model}, {PROMPT_TOKENS} prompt and {NEW_TOKENS} new tokens, tokens/s by number of streams"


def _compare(
    directory: Path,
    title: str,
    settings: dict[str, Settings],
    competitors: tuple[Peer, ...],
    loads: list[Load],
    against_best: Target = AGAINST_BEST,
) -> None:
    """Print a table with a column for each load. A peer that is missing or fails is reported, and the others run."""
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        running = {name: stack.enter_context(_ours(directory / name, **of)) for name, of in settings.items()}
        for peer in competitors:
            if importlib.util.find_spec(peer.package) is None:
                failures[peer.name] = f"the package {peer.package} is not installed."
                continue
            with _reported(peer.name, failures):
                running[peer.name] = stack.enter_context(peer.start(directory / peer.package))
        speeds: dict[str, Speeds] = {name: {} for name in running}
        for load in loads:
            for name, speed in _take_turns(running, load, failures, never_fail={*settings}).items():
                speeds[name][load.column] = speed
    columns = [load.column for load in loads]
    complete = {name: of_load for name, of_load in speeds.items() if len(of_load) == len(loads)}
    peers = {name: of_load for name, of_load in complete.items() if name not in settings}
    rows = [
        [f"{name} ({running[name].details})", *(number(of_load[n]) for n in columns)]
        for name, of_load in complete.items()
    ]
    for name in settings:
        rows.append([f"{name} / best peer", *(_against_best(speeds[name], peers, n, against_best) for n in columns)])
        if GENERATE in peers:
            targets = SCHEDULER_AGAINST_GENERATE if name == SCHEDULER else AGAINST_GENERATE
            ratios = {n: speeds[name][n] / peers[GENERATE][n] for n in columns}
            rows.append([f"{name} / {GENERATE}", *(_verdict(ratios[n], targets.get(n)) for n in columns)])
    notes = [f"{name}: {reason}" for name, reason in failures.items()]
    print_table(title, ["", *map(str, columns)], rows, *notes)


Speeds = dict[int, float]
"""Tokens per second by column."""


def _take_turns(
    engines: dict[str, Running], load: Load, failures: dict[str, str], never_fail: set[str]
) -> dict[str, float]:
    """Return tokens per second: medians over up to `ROUNDS` rounds. Every prompt is used only once.

    Each turn begins with a short load that is not timed.
    An engine that fails is left out from then on, unless it is one of `never_fail`.
    """
    model = default_model()
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(ROUNDS):
        short = make_prompts(model, load.streams, PROMPT_TOKENS, (load.column, turn, "warm-up"))
        prompts = make_prompts(model, load.streams, load.prompt_tokens, (load.column, turn))
        for name, engine in engines.items():
            if name in failures or sum(seconds[name]) >= ROUNDS_LIMIT:
                continue
            print(f"{load.column}, {turn}: {name}", file=sys.stderr)
            with nullcontext() if name in never_fail else _reported(name, failures):
                engine.generate(short, WARM_UP_TOKENS)
                seconds[name].append(engine.generate(prompts, load.new_tokens))
    return {name: load.tokens / statistics.median(taken) for name, taken in seconds.items() if name not in failures}


@contextmanager
def _reported(name: str, failures: dict[str, str]) -> Iterator[None]:
    """Note what goes wrong: whatever is wrong with a peer, the others can still be measured."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        reason = str(error).strip().splitlines() or [""]
        failures[name] = f"failed: {type(error).__name__}: {reason[-1]}"


def _against_best(speeds: Speeds, peers: dict[str, Speeds], n: int, target: Target) -> str:
    if not peers:
        return ""
    best, name = max((peer[n], name) for name, peer in peers.items())
    ratio = speeds[n] / best
    return f"{ratio:.2f} ({name}), {target.verdict(0, ratio)}"


def _verdict(ratio: float, target: Target | None) -> str:
    return f"{ratio:.2f}" + (f", {target.verdict(0, ratio)}" if target is not None else "")


# Ours

OURS: dict[str, Settings] = {
    "ours": {},
    "ours, streamed": {"stream": True},
    "ours, LMI with details": {"details": True},
    "ours, exact": {"dtype": "fp32"},
}

PROMPT_SETTINGS = {name: OURS[name] for name in ("ours", "ours, exact")}
"""With one new token, the others are no different."""


@contextmanager
def _ours(
    directory: Path,
    rolling_batch: str = "auto",
    dtype: str = "auto",
    gguf_file: Path | None = None,
    *,
    stream: bool = False,
    details: bool = False,
) -> Iterator[Running]:
    """Start our server, which is asked as the peers are, or with `details` in LMI's schema."""
    properties: dict[str, object] = {"option.rolling_batch": rolling_batch, "option.dtype": dtype}
    environ = {}
    if gguf_file is not None:
        properties["option.model_id"] = gguf_file
        environ["LMI_CACHE_DIR"] = str(gguf_file.parent / "cache")  # what is made of it is deleted with it
    with lmi_server(directory, properties, environ) as server:
        generate = _lmi(server) if details else _openai(server, {}, stream=stream)
        yield Running(f"{server.backend}, {server.dtype}, HTTP", generate)


def _lmi(server: Server) -> Generate:
    """Ask for answers with the log probability of each token."""

    def generate(prompts: list[Prompt], new_tokens: int) -> float:
        requests = [
            invocation(text, stream=False, max_new_tokens=new_tokens, ignore_eos_token=True, details=True)
            for text, _ in prompts
        ]
        load = run_load(server.port, requests, len(requests))
        answers = [json.loads(answer.body)["details"]["generated_tokens"] for answer in load.answers]
        _check(sum(answers), len(prompts) * new_tokens)
        return load.seconds

    return generate


# Peers

GENERATE = "model.generate"


@contextmanager
def _in_process(directory: Path, script: str, *arguments: str) -> Iterator[Running]:
    with responder(directory, script, *arguments) as peer:

        def generate(prompts: list[Prompt], new_tokens: int) -> float:
            answer = peer.ask({"prompts": [token_ids for _, token_ids in prompts], "new_tokens": new_tokens})
            _check(answer["tokens"], len(prompts) * new_tokens)
            return float(answer["seconds"])

        yield Running(peer.hello, generate)


def _transformers(directory: Path, method: str) -> AbstractContextManager[Running]:
    return _in_process(directory / method, "peer_transformers.py", str(default_model()), method)


def _openvino(directory: Path, gguf_file: Path, precision: str) -> AbstractContextManager[Running]:
    return _in_process(directory / precision, "peer_openvino.py", str(gguf_file), precision)


@contextmanager
def _llama_cpp(directory: Path, gguf_file: Path, slots: int, slot_tokens: int) -> Iterator[Running]:
    with llama_cpp_server(directory, gguf_file, slots, slot_tokens) as server:
        yield Running("int8, HTTP", _openai(server, {}, stream=True))


@contextmanager
def _vllm(directory: Path) -> Iterator[Running]:
    model = default_model()
    options: dict[str, object] = {"max_model_len": 2048, "kv_cache_memory_bytes": 1 << 30, "enforce_eager": True}
    options["dtype"] = fastest_dtype()
    with vllm_server(directory, model, options) as server:
        ask = _openai(server, {"model": str(model)}, stream=True)

        def generate(prompts: list[Prompt], new_tokens: int) -> float:
            server.go_on()
            try:
                return ask(prompts, new_tokens)
            finally:
                server.pause()

        server.pause()  # an idle `vllm serve` polls, and would slow the others down
        try:
            yield Running(f"{fastest_dtype()}, HTTP", generate)
        finally:
            server.go_on()


def _openai(server: Server, fields: dict[str, object], *, stream: bool) -> Generate:
    def generate(prompts: list[Prompt], new_tokens: int) -> float:
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        sampling = {"max_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        requests = [post({"prompt": text} | streaming | sampling | fields, "/v1/completions") for text, _ in prompts]
        load = run_load(server.port, requests, len(prompts))
        lines = (line.removeprefix(b"data: ") for answer in load.answers for line in answer.body.splitlines())
        usages = (json.loads(line).get("usage") for line in lines if line.startswith(b"{"))
        _check(sum(usage["completion_tokens"] for usage in usages if usage), len(prompts) * new_tokens)
        return load.seconds

    return generate


def _gguf_peers(
    gguf_file: Path,
    slots: int = max(CONCURRENCY),
    slot_tokens: int = PROMPT_TOKENS + NEW_TOKENS + 32,
) -> tuple[Peer, ...]:
    package = "openvino_genai"
    pipeline = "ContinuousBatchingPipeline"
    return (
        Peer(pipeline, package, lambda directory: _openvino(directory, gguf_file, "defaults")),
        Peer(f"{pipeline}, exact", package, lambda directory: _openvino(directory, gguf_file, "exact")),
        Peer("llama.cpp's server", "xllamacpp", lambda directory: _llama_cpp(directory, gguf_file, slots, slot_tokens)),
    )


def _default_peers() -> tuple[Peer, ...]:
    return (
        Peer(GENERATE, "transformers", lambda directory: _transformers(directory, "generate")),
        Peer("model.generate_batch", "transformers", lambda directory: _transformers(directory, "generate_batch")),
        *_gguf_peers(default_gguf()),
        Peer("vllm serve", "vllm", _vllm),
    )


def _check(tokens: int, expected: int) -> None:
    if tokens != expected:
        raise RuntimeError(f"{expected} tokens were to be generated, not {tokens}")
