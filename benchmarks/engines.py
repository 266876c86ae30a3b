"""Tokens per second of our engines, and of prompts, against the engines that others would take for the same model.

Only one engine runs at a time: two that share the cores slow each other down many times over.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from http_load import invocation, post, run_load
from machine import fastest_dtype
from model_prompts import Prompt, default_gguf, default_model, make_prompts
from random_gguf import SHAPES, TYPES, write_random_gguf
from report import PAIRED_HEADER, Paired, Target, number, print_table
from servers import Server, llama_cpp_server, lmi_server, responder, vllm_server

CONCURRENCY = (1, 8, 32)
PROMPT_TOKENS = 64
NEW_TOKENS = 64
WARM_UP_TOKENS = 8
ROUNDS = 3
ROUNDS_LIMIT = 20.0
"""No further round is started after this many seconds at one concurrency. Slow peers get fewer rounds."""

AGAINST_BEST = Target(1.0)
PROMPTS_AGAINST_BEST = Target(1.2)
AGAINST_GENERATE = {1: Target(3.0), 8: Target(3.0)}
SCHEDULER_AGAINST_GENERATE = {1: Target(1.2), 8: Target(1.2), 32: Target(1.0)}

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
    """Print tokens per second of the default model at each concurrency, and a second table about our scheduler."""
    _compare(directory, _streams_title("SmolLM2-135M"), OURS, _default_peers(), STREAMS)
    _compare_scheduler(directory)


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
    ours = {name: _measure(_ours(directory / name, **arguments), loads) for name, arguments in settings.items()}
    peers: dict[str, Speeds] = {}
    failures: list[str] = []
    for peer in competitors:
        if importlib.util.find_spec(peer.package) is None:
            failures.append(f"{peer.name}: the package {peer.package} is not installed.")
            continue
        try:
            peers[peer.name] = _measure(peer.start(directory / peer.package), loads)
        except Exception as error:  # noqa: BLE001  whatever is wrong with a peer, the others can still be measured
            reason = str(error).strip().splitlines() or [""]
            failures.append(f"{peer.name}: failed: {type(error).__name__}: {reason[-1]}")
    rows = [[f"{name} ({speeds.details})", *map(number, speeds.values.values())] for name, speeds in ours.items()]
    rows += [[f"{name} ({speeds.details})", *map(number, speeds.values.values())] for name, speeds in peers.items()]
    columns = [load.column for load in loads]
    for name, speeds in ours.items():
        rows.append([f"{name} / best peer", *(_against_best(speeds, peers, n, against_best) for n in columns)])
        if GENERATE in peers:
            rows.append([f"{name} / {GENERATE}", *(_against_generate(speeds, peers, n) for n in columns)])
    print_table(title, ["", *map(str, columns)], rows, *failures)


def _compare_scheduler(directory: Path) -> None:
    """Print a table with our scheduler on transformers beside `generate`, in alternating rounds."""
    model = default_model()
    rows: list[list[str]] = []
    ours = _ours(directory / "scheduler", rolling_batch="scheduler")
    with ours as scheduler, _transformers(directory, "generate") as generate:
        for load in STREAMS:
            paired = Paired()
            sides = ((scheduler, paired.ours), (generate, paired.peer))
            warm_up = make_prompts(model, load.streams, PROMPT_TOKENS, (load.column, "warm-up"))
            for engine, _ in sides:
                engine.generate(warm_up, WARM_UP_TOKENS)
            for turn in range(ROUNDS):
                prompts = make_prompts(model, load.streams, load.prompt_tokens, (load.column, turn))
                for engine, speeds in sides:
                    speeds.append(load.tokens / engine.generate(prompts, load.new_tokens))
            target = SCHEDULER_AGAINST_GENERATE[load.column]
            rows.append(paired.row(f"{load.streams} at a time", "tokens/s", target=target))
        details = f"{scheduler.details}, beside {GENERATE} ({generate.details})"
    print_table(f"Engines: SmolLM2-135M, rolling_batch=scheduler, {details}", PAIRED_HEADER, rows)


@dataclass(frozen=True)
class Speeds:
    """Tokens per second by column."""

    details: str
    values: dict[int, float]


def _measure(engine: AbstractContextManager[Running], loads: list[Load]) -> Speeds:
    """Run each load after a short warm-up, up to `ROUNDS` times, and take the median. Every prompt is used only once."""
    model = default_model()
    values: dict[int, float] = {}
    with engine as running:
        print(f"measuring {running.details}", file=sys.stderr)
        for load in loads:
            n = load.streams
            running.generate(make_prompts(model, n, PROMPT_TOKENS, (load.column, "warm-up")), WARM_UP_TOKENS)
            seconds: list[float] = []
            while len(seconds) < ROUNDS and sum(seconds) < ROUNDS_LIMIT:
                prompts = make_prompts(model, n, load.prompt_tokens, (load.column, len(seconds)))
                seconds.append(running.generate(prompts, load.new_tokens))
            values[load.column] = load.tokens / statistics.median(seconds)
        return Speeds(running.details, values)


def _against_best(speeds: Speeds, peers: dict[str, Speeds], n: int, target: Target) -> str:
    if not peers:
        return ""
    best, name = max((peer.values[n], name) for name, peer in peers.items())
    ratio = speeds.values[n] / best
    return f"{ratio:.2f} ({name}), {target.verdict(0, ratio)}"


def _against_generate(speeds: Speeds, peers: dict[str, Speeds], n: int) -> str:
    ratio = speeds.values[n] / peers[GENERATE].values[n]
    return f"{ratio:.2f}" + (f", {AGAINST_GENERATE[n].verdict(0, ratio)}" if n in AGAINST_GENERATE else "")


# Ours

OURS: dict[str, Settings] = {
    "ours": {},
    "ours, streamed": {"stream": True},
    "ours, int8": {"dtype": "int8"},
    "ours, exact": {"dtype": "fp32"},
}

PROMPT_SETTINGS = {name: settings for name, settings in OURS.items() if "stream" not in settings}
"""With one new token, streaming is no different."""


@contextmanager
def _ours(
    directory: Path,
    rolling_batch: str = "auto",
    dtype: str = "auto",
    gguf_file: Path | None = None,
    *,
    stream: bool = False,
) -> Iterator[Running]:
    properties: dict[str, object] = {"option.rolling_batch": rolling_batch, "option.dtype": dtype}
    environ = {}
    if gguf_file is not None:
        properties["option.model_id"] = gguf_file
        environ["LMI_CACHE_DIR"] = str(gguf_file.parent / "cache")  # what is made of it is deleted with it
    with lmi_server(directory, properties, environ) as server:

        def generate(prompts: list[Prompt], new_tokens: int) -> float:
            requests = [
                invocation(text, stream=stream, max_new_tokens=new_tokens, ignore_eos_token=True, details=True)
                for text, _ in prompts
            ]
            load = run_load(server.port, requests, len(requests))
            details = [json.loads(answer.body.splitlines()[-1])["details"] for answer in load.answers]
            _check(sum(detail["generated_tokens"] for detail in details), len(prompts) * new_tokens)
            return load.seconds

        yield Running(f"{server.backend}, {server.dtype}, HTTP", generate)


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
        yield Running("int8, HTTP", _openai(server, {}))


@contextmanager
def _vllm(directory: Path) -> Iterator[Running]:
    model = default_model()
    options: dict[str, object] = {"max_model_len": 2048, "kv_cache_memory_bytes": 1 << 30, "enforce_eager": True}
    options["dtype"] = fastest_dtype()
    with vllm_server(directory, model, options) as server:
        yield Running(f"{fastest_dtype()}, HTTP", _openai(server, {"model": str(model)}))


def _openai(server: Server, fields: dict[str, object]) -> Generate:
    def generate(prompts: list[Prompt], new_tokens: int) -> float:
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        sampling = {"max_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        requests = [post({"prompt": text} | streaming | sampling | fields, "/v1/completions") for text, _ in prompts]
        load = run_load(server.port, requests, len(prompts))
        lines = (line for answer in load.answers for line in answer.body.splitlines() if line.startswith(b"data: {"))
        usages = (json.loads(line[len(b"data: ") :]).get("usage") for line in lines)
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
