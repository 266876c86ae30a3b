"""The vLLM adapter on real vLLM: options, start-up errors, sampling parameters, adapters, agreement with transformers."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from facts import raises, says
from frozen_trials import frozen_trials
from lmi_command import lmi
from lora import write_adapter
from serving import free_port
from serving_properties import serving_properties

from backends.base import Backend, ModelFiles
from backends.vllm.arguments import QUANTIZATIONS
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.migration import vllm as migration
from lmi_handlers.migration.command import MANY
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import resolve_model
from lmi_handlers.text.bundle import build_text_bundle, load_text_bundle
from lmi_handlers.text.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.timeout(900),
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_flask"),
]

SMALL = {"kv_cache_memory_bytes": "256M"}
EXACT: dict[str, Any] = {"dtype": "fp32", "enforce_eager": True, "max_model_len": 512, "extra": SMALL}
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "To be, or not to be,",
    "The three primary colours are",
    "Water boils at a temperature of",
    "Dear Sir or Madam,",
    "1, 1, 2, 3, 5, 8,",
    "The largest planet of the solar system is",
    "import numpy as np\n",
    "A recipe for bread needs flour,",
    "In 1969 the first man",
]


class Smol:
    """The small model with its tokenizer, and backends loaded from it."""

    def __init__(self, path: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._decoder = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        self._numbers = itertools.count()

    def load(self, backend: str, adapters: dict[str, Path] | None = None, **options: Any) -> Backend:
        from backends import load_backend_class

        files = ModelFiles(
            path=self.path,
            eos_token_ids=tuple(self.tokenizer.eos_token_ids),
            vocab_size=self.vocab_size,
            adapters=adapters or {},
        )
        return load_backend_class(backend).load(files, serving_properties(**options), lambda phase: None)

    def add(
        self, backend: Backend, prompt: str, *, adapter: str | None = None, priority: int = 0, **params: Any
    ) -> str:
        request_id = f"r{next(self._numbers)}"
        defaults: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24}
        backend.add_request(
            TokenRequest(
                request_id=request_id,
                prompt=EncodedPrompt(self.tokenizer.encode(prompt), adapter),
                sampling_params=SamplingParams(**(defaults | params)),
                priority=priority,
            )
        )
        return request_id

    def outputs(self, backend: Backend, *request_ids: str) -> dict[str, list[TokenOutput]]:
        collected: dict[str, list[TokenOutput]] = {request_id: [] for request_id in request_ids}
        running = set(request_ids)
        while running:
            for output in backend.step():
                collected.setdefault(output.request_id, []).append(output)
                if output.finish_reason is not None:
                    running.discard(output.request_id)
        return collected

    def text(self, backend: Backend, prompt: str, **request: Any) -> str:
        request_id = self.add(backend, prompt, **request)
        return self.decode(self.outputs(backend, request_id)[request_id])

    def decode(self, outputs: list[TokenOutput]) -> str:
        text: str = self._decoder.decode([token for output in outputs for token in output.token_ids])
        return text


@pytest.fixture(scope="module")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Smol:
    cache_dir = default_cache_dir(os.environ)
    path = resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)
    directory = tmp_path_factory.mktemp("bundle")
    bundle = build_text_bundle(path, directory, trust_remote_code=False)
    return Smol(path, Tokenizer(directory, load_text_bundle(directory)), bundle.vocab_size)


@pytest.fixture(scope="module")
def engine(tiny: Smol, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """The random checkpoint in float32 with two adapters, and requests in order of priority."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {"loud": small_adapter(folder / "loud", 0.5), "still": small_adapter(folder / "still", 0.0)}
    options = EXACT | {"enable_lora": True, "extra": SMALL | {"scheduling_policy": "priority"}}
    backend = tiny.load("vllm", adapters, **options, max_rolling_batch_size=4)
    yield backend
    backend.close()


def small_adapter(folder: Path, size: float) -> Path:
    return write_adapter(folder, size, layers=2, width=128)


@pytest.fixture(scope="module")
def plain(smol: Smol) -> Iterator[Backend]:
    """The model in float32 without adapters. Its files name an end outside the vocabulary."""
    from backends.vllm.backend import VLLMBackend

    ends = (*smol.tokenizer.eos_token_ids, smol.vocab_size + 5)
    files = ModelFiles(path=smol.path, eos_token_ids=ends, vocab_size=smol.vocab_size)
    backend = VLLMBackend.load(files, serving_properties(**EXACT, max_logprobs=-1), lambda phase: None)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def tiny(smol: Smol, tiny_llama: Path) -> Smol:
    """The random checkpoint, whose tokenizer is the small model's."""
    return Smol(tiny_llama, smol.tokenizer, smol.vocab_size)


# Options


def transfer(connector: str, **fields: str) -> str:
    return json.dumps({"kv_connector": connector, "kv_role": "kv_both", **fields})


@pytest.fixture
def arguments(tmp_path: Path) -> Callable[..., Any]:
    """`arguments(option=value, ...)` returns the arguments for vLLM."""
    from backends.vllm.engine_args import engine_arguments

    return lambda **options: engine_arguments(tmp_path, serving_properties(**options))


@pytest.mark.parametrize(
    ("options", "argument", "value"),
    [
        ({}, "max_num_seqs", 256),
        ({"max_rolling_batch_size": 7}, "max_num_seqs", 7),
        ({"rolling_batch": "disable", "batch_size": 5}, "max_num_seqs", 5),
        ({"max_rolling_batch_prefill_tokens": 999}, "max_num_batched_tokens", 999),
        ({"tensor_parallel_degree": 2}, "tensor_parallel_size", 2),
        ({"tensor_parallel_degree": "max"}, "tensor_parallel_size", 1),
        ({"quantize": "awq"}, "quantization", "awq"),
        ({"cpu_offload_gb_per_gpu": 1.5}, "cpu_offload_gb", 1.5),
        ({"dtype": "fp32"}, "dtype", "float32"),
        ({"dtype": "bf16"}, "dtype", "bfloat16"),
        ({"dtype": "auto"}, "dtype", "auto"),
        ({"gpu_memory_utilization": 0.5}, "gpu_memory_utilization", 0.5),
        ({"enforce_eager": True}, "enforce_eager", True),
        ({"enable_prefix_caching": False}, "enable_prefix_caching", False),
        ({"trust_remote_code": True}, "trust_remote_code", True),
        ({"max_logprobs": 3}, "max_logprobs", 3),
        ({"max_logprobs": -1}, "max_logprobs", -1),
        ({"extra": {"mm_processor_cache_gb": "9"}}, "mm_processor_cache_gb", 4),  # vLLM's default
        ({"extra": {"seed": "7"}}, "seed", 7),
        ({"extra": {"block_size": "32"}}, "block_size", 32),
        ({"block_size": 32}, "block_size", 32),  # as if another backend declared it
        ({"async_scheduling": False}, "async_scheduling", False),
        ({"extra": {"async_scheduling": "false"}}, "async_scheduling", False),
        ({"extra": {"hf_overrides": '{"rope_theta": 1}'}}, "hf_overrides", {"rope_theta": 1}),
        ({"extra": {"kv_cache_memory_bytes": "1M"}}, "kv_cache_memory_bytes", 2**20),
    ],
)
def test_option_reaches_vllm(arguments: Callable[..., Any], options: dict[str, Any], argument: str, value: Any) -> None:
    assert getattr(arguments(**options), argument) == value


def test_seed_is_random_unless_configured(arguments: Callable[..., Any]) -> None:
    assert arguments().seed != arguments().seed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"extra": {"max_num_sqs": "3"}}, "option.max_num_sqs: option.max_num_seqs"),
        ({"extra": {"block_size": "abc"}}, "option.block_size: int abc"),
        ({"extra": {"async_scheduling": "maybe"}}, "option.async_scheduling maybe true false"),
        ({"extra": {"model": "other"}}, "option.model: option.model_id"),
        ({"skip_tokenizer_init": True}, "option.skip_tokenizer_init: grammars tokenizer"),
        ({"extra": {"served_model_name": "other"}}, "option.served_model_name: server names model"),
        ({"pipeline_parallel_degree": 2}, "option.pipeline_parallel_degree 2 1 CPU"),
        ({"dtype": "int8"}, "option.dtype: choice int8"),
        ({"extra": {"return_sampling_mask": "true"}}, "option.return_sampling_mask True no API"),
        ({"lmcache_auto_config": True}, "option.lmcache_auto_config GPU CPU"),
        (
            {"lmcache_auto_config": True, "enable_prefix_caching": False},
            "option.lmcache_auto_config option.enable_prefix_caching",
        ),
        (
            {"lmcache_auto_config": True, "extra": {"enable_expert_parallel": "true"}},
            "option.lmcache_auto_config option.enable_expert_parallel",
        ),
        (
            {"lmcache_auto_config": True, "extra": {"kv_offloading_size": "2"}},
            "option.lmcache_auto_config option.kv_offloading_size",
        ),
        ({"lmcache_auto_config": True, "task": "text-embedding"}, "option.lmcache_auto_config option.task"),
        ({"lmcache_config_file": "cache.yaml"}, "option.lmcache_config_file cache.yaml LMCache installed"),
        (
            {"enable_lora": True, "extra": {"kv_transfer_config": transfer("LMCacheMPConnector")}},
            "option.enable_lora LMCacheMPConnector adapters option.kv_transfer_config",
        ),
        (
            {"enable_lora": True, "extra": {"kv_offloading_size": "1", "kv_offloading_backend": "lmcache"}},
            "option.enable_lora LMCacheMPConnector adapters option.kv_offloading_backend",
        ),
    ],
)
def test_option_that_vllm_rejects(arguments: Callable[..., Any], options: dict[str, Any], words: str) -> None:
    with raises(ConfigError, words) as caught:
        arguments(**options)
    assert "\n" not in str(caught.value)


def test_a_connector_that_keeps_adapters_apart_takes_them(arguments: Callable[..., Any]) -> None:
    own = {"kv_connector_module_path": "elsewhere"}
    for text in (transfer("NixlConnector"), transfer("Mine", **own)):
        assert arguments(enable_lora=True, extra={"kv_transfer_config": text}).enable_lora
    assert not arguments(extra={"kv_transfer_config": transfer("LMCacheMPConnector")}).enable_lora


def test_pickled_weights_of_a_draft_model_are_refused(arguments: Callable[..., Any], tmp_path: Path) -> None:
    import torch

    (draft := tmp_path / "draft").mkdir()
    torch.save({}, draft / "pytorch_model.bin")
    speculation = json.dumps({"method": "draft_model", "model": str(draft), "num_speculative_tokens": 1})
    for extra in ({"speculative_config": speculation}, {"spec_model": str(draft)}):
        with raises(ConfigError, "pytorch_model.bin pickle file option.allow_pickle"):
            arguments(extra=extra)
        assert arguments(extra=extra, allow_pickle=True)
    (draft / "model.safetensors").write_bytes(b"cut off")
    with raises(ConfigError, "model.safetensors cut off"):
        arguments(extra={"speculative_config": speculation})


def test_option_that_vllm_does_not_have_is_logged(
    arguments: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert arguments(tokens_per_block=64).block_size == arguments().block_size
    assert says(caplog.text, "option.tokens_per_block no effect vllm")


@pytest.mark.parametrize(
    "name",
    [
        *("override_generation_config", "mm_processor_cache_gb", "enable_prompt_embeds", "disable_log_stats"),
        *("swap_space", "disable_log_requests"),  # of older versions
    ],
)
def test_option_that_only_vllms_server_reads_is_logged(
    arguments: Callable[..., Any], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    arguments(extra={name: "1"})
    assert f"option.{name} has no effect: " in caplog.text


def test_an_argument_that_vllm_has_replaced_names_its_successor(arguments: Callable[..., Any]) -> None:
    with raises(ConfigError, "option.rope_scaling option.hf_overrides"):
        arguments(extra={"rope_scaling": "{}"})


def test_vllm_knows_every_option_that_it_reads(arguments: Callable[..., Any]) -> None:
    from vllm import EngineArgs

    from backends import registry
    from backends.vllm.arguments import ALIASES, NO_EFFECT, OURS, REMOVED, REPLACED
    from backends.vllm.engine_args import TEXT_LAYER
    from backends.vllm.offload import OPTIONS
    from backends.vllm.options import NO_COUNTERPART

    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    for declared in registry().options.values():
        name = declared.name
        if "vllm" in declared.read_by:
            known = ALIASES.get(name, name) in fields, name in NO_COUNTERPART, name in TEXT_LAYER, name in OPTIONS
            assert any(known), name
        else:  # it is passed on under this name only
            assert not fields & {key.removeprefix("option.") for key in declared.keys} - {name}, name
    assert not set(NO_COUNTERPART) & fields
    assert set(ALIASES.values()) | set(OURS) | set(NO_EFFECT) <= fields
    assert not set(NO_EFFECT) & set(OURS)
    assert not {*REMOVED, *REPLACED} & fields


def test_quantisations_are_those_of_vllm() -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    assert set(QUANTIZATIONS) == set(QUANTIZATION_METHODS)


def test_every_flag_of_vllm_is_read_as_vllm_reads_it() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    engine_parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    engine = {option for action in engine_parser._actions for option in action.option_strings}
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        for option in {*action.option_strings} - {"-h", "--help"}:
            name = migration._SHORT.get(option, option).lstrip("-")
            assert migration.number_of_values(name) == (0 if action.nargs == 0 else MANY if action.nargs == "+" else 1)
            plain = name.removeprefix("no-") if isinstance(action, argparse.BooleanOptionalAction) else name
            is_known = option in engine or plain.replace("-", "_") in migration._MEANINGS
            assert is_known, f"{option} is a flag of the HTTP server"


def test_check_uses_vllms_own_validation(tmp_path: Path) -> None:
    results = []
    for name in ("block_size", "blok_size", "quantize"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "serving.properties").write_text(f"option.rolling_batch=vllm\noption.{name}=32\n")
        results.append(lmi("check", "--model-dir", str(tmp_path / name), "--port", str(free_port())))
    good, bad, unknown = results
    assert good.exit_code == 0, good.stderr
    assert "passed on to vllm" in good.stdout
    assert bad.exit_code == 1
    wanted = "option.blok_size: neither this server nor vLLM has this option; did you mean option.block_size?"
    assert wanted in bad.stderr
    assert "option.quantize has value '32': vLLM supports awq, " in unknown.stderr


def test_check_asks_the_ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there. What a cluster answers: `test_vllm_nodes.py`."""
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    on_ray = "option.tensor_parallel_degree=2\noption.distributed_executor_backend=ray\n"
    (tmp_path / "serving.properties").write_text(f"option.rolling_batch=vllm\n{on_ray}")
    result = lmi("check", "--model-dir", str(tmp_path), "--port", str(free_port()))
    assert "cores for each worker will be asked for; " in result.output, result.output


# Start-up errors


@pytest.mark.parametrize(
    ("change", "options", "option", "words"),
    [
        ({"without": "config.json"}, {}, "model_id", "config.json"),
        ({"without": "model.safetensors"}, {}, "model_id", "Cannot find any model weights"),
        ({"config": {"architectures": ["FooForCausalLM"]}}, {}, "model_id", "FooForCausalLM"),
        ({"config": {"architectures": ["FooForCausalLM"], "model_type": "foo"}}, {}, "model_id", "`foo`"),
        ({}, {"quantize": "awq"}, "quantize", "awq"),
        ({}, {"load_format": "nonsense"}, "load_format", "nonsense"),
        ({}, {"max_model_len": 100_000}, "max_model_len", "100000"),
        ({}, {"tensor_parallel_degree": 3}, "tensor_parallel_degree", "divisible"),
        (
            {},
            {"max_model_len": 2048, "dtype": "bf16", "extra": {"kv_cache_memory_bytes": "100k"}},
            "max_model_len",
            "KV cache",
        ),
        ({}, {"gpu_memory_utilization": 0.001, "extra": {}}, "gpu_memory_utilization", "memory"),
    ],
)
def test_start_up_error_is_one_line_with_the_option(
    tiny_llama: Path, tmp_path: Path, change: dict[str, Any], options: dict[str, Any], option: str, words: str
) -> None:
    from backends.vllm.backend import VLLMBackend

    path = tmp_path / "model"
    shutil.copytree(tiny_llama, path)
    if "config" in change:
        config = json.loads((path / "config.json").read_text()) | change["config"]
        (path / "config.json").write_text(json.dumps(config))
    if "without" in change:
        (path / change["without"]).unlink()
    files = ModelFiles(path=path, eos_token_ids=(2,), vocab_size=49152)
    defaults: dict[str, Any] = {"enforce_eager": True, "max_model_len": 128, "extra": SMALL}
    properties = serving_properties(**(defaults | options))
    with pytest.raises(ConfigError) as caught:
        VLLMBackend.load(files, properties, lambda phase: None)
    message = str(caught.value)
    assert says(message, f"option.{option}: vLLM {path}")
    assert words in message
    assert "\n" not in message
    assert len(message) < 600


def test_adapter_that_does_not_fit_the_model(tiny: Smol, tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "wrong", 0.1)
    config = json.loads((folder / "adapter_config.json").read_text()) | {"r": 64}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with raises(ConfigError, "option.enable_lora: wrong cannot loaded 64"):
        tiny.load("vllm", {"wrong": folder}, **EXACT, enable_lora=True, max_lora_rank=8)


# Sampling parameters


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_files_that_name_an_end_outside_the_vocabulary(smol: Smol, plain: Backend) -> None:
    """With `min_tokens` vLLM writes to the logits of all ends. `max_logprobs=-1` means as many as there are tokens."""
    assert plain.capabilities.max_logprobs == smol.vocab_size
    name = smol.add(plain, "def f():", max_tokens=3, min_tokens=2, logprobs=100)
    *_, last = smol.outputs(plain, name)[name]
    assert last.error is None


def test_json_schema(smol: Smol, plain: Backend) -> None:
    wanted = StructuredOutputs(json=json.dumps(SCHEMA))
    person = json.loads(smol.text(plain, "A person as JSON: ", structured_outputs=wanted, max_tokens=80))
    assert set(person) == {"name", "age"}
    assert isinstance(person["name"], str)
    assert 0 <= person["age"] <= 99


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        (StructuredOutputs(regex="[0-9]{3}-[a-z]{2}"), "[0-9]{3}-[a-z]{2}"),
        (StructuredOutputs(choice=("blue", "green")), "blue|green"),
        (StructuredOutputs(grammar='root ::= "a" ("b" | "c") "d"'), "a[bc]d"),
    ],
)
def test_other_constraints(tiny: Smol, engine: Backend, wanted: StructuredOutputs, pattern: str) -> None:
    assert re.fullmatch(pattern, tiny.text(engine, "The sky is ", structured_outputs=wanted))


def test_any_json_object(tiny: Smol, engine: Backend) -> None:
    text = tiny.text(engine, "JSON: ", structured_outputs=StructuredOutputs(json_object=True), max_tokens=12)
    assert text.lstrip().startswith("{")


@pytest.mark.parametrize(
    "wanted",
    [
        StructuredOutputs(json="{oops"),
        StructuredOutputs(json='{"type": "nonsense"}'),
        StructuredOutputs(regex="(["),
        StructuredOutputs(grammar="root ::= ("),
    ],
)
def test_grammar_that_does_not_compile_fails_alone(tiny: Smol, engine: Backend, wanted: StructuredOutputs) -> None:
    other = tiny.add(engine, PROMPTS[0], max_tokens=6)
    wrong = tiny.add(engine, "x", structured_outputs=wanted)
    assert engine.num_preparing == 1
    outputs = tiny.outputs(engine, other, wrong)
    (refused,) = outputs[wrong]
    assert (refused.token_ids, refused.finish_reason, refused.invalid_request) == ([], FinishReason.ERROR, True)
    assert refused.error is not None
    assert refused.error.startswith("cannot be compiled: ")
    assert "\n" not in refused.error
    assert tiny.decode(outputs[other]) == tiny.text(engine, PROMPTS[0], max_tokens=6)
    assert engine.num_preparing == 0


@pytest.mark.parametrize(
    "wanted",
    [
        StructuredOutputs(json='{"type": "array", "items": {"type": "integer"}, "minItems": 1000000000}'),
        StructuredOutputs(choice=tuple(f"choice number {n} of very many" for n in range(100_000))),
        StructuredOutputs(grammar='root ::= root root | "a" | ""'),
    ],
)
def test_expensive_grammar_does_not_delay_others(tiny: Smol, engine: Backend, wanted: StructuredOutputs) -> None:
    tiny.text(
        engine, "x", structured_outputs=StructuredOutputs(choice=("a",))
    )  # starts the process that tries grammars
    with frozen_trials():
        too_much = tiny.add(engine, "x", structured_outputs=wanted)
        other = tiny.add(engine, PROMPTS[0], max_tokens=6)
        assert tiny.outputs(engine, other).keys() == {other}
        assert engine.num_preparing == 1, "the other one did not wait for it"
    (refused,) = tiny.outputs(engine, too_much)[too_much]
    assert refused.error is not None
    assert refused.error.startswith("takes ")


def test_abort_before_the_grammar_is_compiled(tiny: Smol, engine: Backend) -> None:
    gone = tiny.add(engine, "x", structured_outputs=StructuredOutputs(regex="a{3}b"))
    engine.abort(gone)
    assert engine.num_preparing == 0
    assert tiny.outputs(engine, tiny.add(engine, PROMPTS[0], max_tokens=3)).keys().isdisjoint({gone})


def test_cache_usage(tiny: Smol, engine: Backend) -> None:
    assert engine.kv_cache_usage == 0.0
    running = tiny.add(engine, PROMPTS[0] * 10, max_tokens=3)
    engine.step()
    assert 0.0 < engine.kv_cache_usage < 1.0
    tiny.outputs(engine, running)
    assert engine.kv_cache_usage == 0.0


def test_prefix_cache_is_counted(tiny: Smol, engine: Backend) -> None:
    """vLLM's blocks have 128 tokens on a CPU. It does not look up prompts whose logprobs are requested."""
    prompt, before = "A thing of beauty is a joy for ever. " * 40, engine.counters
    length = len(tiny.tokenizer.encode(prompt))
    cached = []
    for prompt_logprobs in (None, None, 0):
        request_id = tiny.add(engine, prompt, max_tokens=3, ignore_eos=True, prompt_logprobs=prompt_logprobs)
        first, *others = tiny.outputs(engine, request_id)[request_id]
        assert {output.num_cached_tokens for output in others} == {None}
        cached.append(first.num_cached_tokens or 0)
    assert cached == [0, (length - 1) // 128 * 128, 0]
    assert engine.counters == before + EngineCounters(prefix_cache_queries=2 * length, prefix_cache_hits=sum(cached))


@pytest.mark.parametrize(
    "params", [{"temperature": 2.5}, {"logprobs": 21}, {"stop_token_ids": (10**6,), "logit_bias": {10**6: 1.0}}]
)
def test_value_that_vllm_rejects_is_an_invalid_request(tiny: Smol, engine: Backend, params: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        tiny.add(engine, "x", **params)
    assert engine.step() == []


def test_bad_words(smol: Smol, plain: Backend) -> None:
    assert "Paris" in smol.text(plain, PROMPTS[0], max_tokens=3)
    assert "Paris" not in smol.text(plain, PROMPTS[0], max_tokens=3, bad_words=("Paris",))


def test_allowed_token_ids(tiny: Smol, engine: Backend) -> None:
    allowed = tuple(tiny.tokenizer.encode("yes no"))
    request_id = tiny.add(engine, "x", allowed_token_ids=allowed, temperature=1.0, ignore_eos=True, max_tokens=8)
    generated = {token for output in tiny.outputs(engine, request_id)[request_id] for token in output.token_ids}
    assert generated <= {*allowed, *tiny.tokenizer.eos_token_ids}


def test_typical_p(smol: Smol, plain: Backend) -> None:
    """Such a small mass leaves one token per position. All seeds give the same text, unlike without it.

    The random model has so many tokens near the entropy that rounding, which differs between rows, decides.
    """

    def texts(**params: Any) -> set[str]:
        wanted = {"temperature": 1.0, "max_tokens": 8, **params}
        ids = [smol.add(plain, PROMPTS[1], seed=seed, **wanted) for seed in range(3)]
        outputs = smol.outputs(plain, *ids)
        return {smol.decode(outputs[request_id]) for request_id in ids}

    assert (len(texts(typical_p=1e-6)), len(texts())) == (1, 3)


def test_samples_match_vllms_own_n(tiny: Smol, engine: Backend) -> None:
    """The engine loop expands `n` into sequences. vLLM does so internally, with the same seeds."""
    from vllm import SamplingParams as EngineSamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8, ignore_eos=True)
    ours = []
    for sample in range(3):
        request_id = tiny.add(engine, PROMPTS[2], temperature=1.0, max_tokens=8, ignore_eos=True, seed=5 + sample)
        assert params.for_sample(sample).seed == 5 + sample
        ours.append([token for output in tiny.outputs(engine, request_id)[request_id] for token in output.token_ids])
    own = engine._engine  # type: ignore[attr-defined]  # vLLM itself, to compare with
    own.add_request(
        "n3",
        {"prompt_token_ids": tiny.tokenizer.encode(PROMPTS[2])},
        EngineSamplingParams(
            n=3, temperature=1.0, seed=5, max_tokens=8, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
        ),
    )
    theirs: dict[int, list[int]] = {}
    while own.has_unfinished_requests():
        for output in own.step():
            theirs |= {completion.index: list(completion.token_ids) for completion in output.outputs}
    assert [theirs[index] for index in range(3)] == ours


@pytest.mark.parametrize(("given", "sent"), [(5e-324, 1e-20), (1e300, 1e20)])
def test_numbers_that_32_bits_do_not_hold(given: float, sent: float) -> None:
    """vLLM would divide logits by 0, or by infinity."""
    from backends.vllm.sampling import engine_sampling_params

    asked = SamplingParams(max_tokens=1, temperature=1.0, repetition_penalty=given, top_p=min(given, 1.0))
    params = engine_sampling_params(asked, ())
    assert (params.repetition_penalty, params.top_p) == (sent, min(sent, 1.0))


# Adapters and priority


def test_adapters_in_one_batch(tiny: Smol, engine: Backend) -> None:
    assert engine.capabilities.adapters == ("loud", "still")
    short = {"max_tokens": 8}
    alone = tiny.text(engine, PROMPTS[0], **short)
    ids = [tiny.add(engine, PROMPTS[0], adapter=adapter, **short) for adapter in (None, "loud", "still")]
    outputs = tiny.outputs(engine, *ids)
    base, loud, still = (tiny.decode(outputs[request_id]) for request_id in ids)
    assert base == still == alone
    assert loud != base


def test_adapters_that_come_and_go(tiny: Smol, engine: Backend, tmp_path: Path) -> None:
    """Three adapters and the model in one batch answer as each does alone, and as on the transformers backend."""
    folders = {name: small_adapter(tmp_path / name, size) for name, size in (("louder", 0.8), ("high", 0.1))}
    engine.add_adapter("third", folders["louder"], engine.read_adapter("third", folders["louder"]), pinned=True)
    names = (None, "loud", "still", "third")
    short = {"max_tokens": 6}  # later, rounding in a batch decides between tokens that are equally likely
    alone = [tiny.text(engine, PROMPTS[1], adapter=name, **short) for name in names]
    ids = [tiny.add(engine, PROMPTS[1], adapter=name, **short) for name in names]
    outputs = tiny.outputs(engine, *ids)
    assert [tiny.decode(outputs[request_id]) for request_id in ids] == alone
    assert len(set(alone)) == 3  # "still" changes nothing
    ours = tiny.load("transformers", {"third": folders["louder"]}, dtype="fp32", enable_lora=True)
    # With so large weights, processors part after a few tokens.
    assert alone[3].startswith(tiny.text(ours, PROMPTS[1], adapter="third", max_tokens=3))
    ours.close()
    with raises(InvalidRequest, "fourth cannot loaded 3 option.max_loras=4"):
        engine.add_adapter("fourth", folders["high"], None)
    engine.remove_adapter("third")
    with raises(InvalidRequest, "third no longer"):
        tiny.add(engine, PROMPTS[1], adapter="third")
    loud = engine._adapters.get("loud").lora_path  # type: ignore[attr-defined]
    running = tiny.add(engine, PROMPTS[1], adapter="loud", **short)
    engine.add_adapter("loud", folders["louder"], None)
    later = tiny.add(engine, PROMPTS[1], adapter="loud", **short)
    assert len(engine._engine.list_loras()) == 3  # type: ignore[attr-defined]
    outputs = tiny.outputs(engine, running, later)
    assert tiny.decode(outputs[running]) == alone[1]  # it keeps the one that is replaced
    assert tiny.decode(outputs[later]) == alone[3]
    engine.add_adapter("loud", Path(loud), None)
    assert tiny.text(engine, PROMPTS[1], adapter="loud", **short) == alone[1]
    config = json.loads((folders["high"] / "adapter_config.json").read_text()) | {"r": 64}
    (folders["high"] / "adapter_config.json").write_text(json.dumps(config))
    with raises(InvalidRequest, "loud cannot loaded 64"):
        engine.add_adapter("loud", folders["high"], None)
    assert tiny.text(engine, PROMPTS[1], adapter="loud", **short) == alone[1]


def test_lowest_priority_number_runs_first(tiny: Smol, engine: Backend) -> None:
    """With `option.scheduling_policy=priority`, four sequences at a time."""
    running = [tiny.add(engine, prompt, max_tokens=4, ignore_eos=True) for prompt in PROMPTS[:4]]
    engine.step()
    later = tiny.add(engine, PROMPTS[4], max_tokens=1, priority=5)
    sooner = tiny.add(engine, PROMPTS[5], max_tokens=1, priority=1)
    ended: list[str] = []
    while len(ended) < 6:
        ended += [output.request_id for output in engine.step() if output.finish_reason is not None]
    assert ended.index(sooner) <= ended.index(later)
    assert set(running) < set(ended)


def test_no_request_waits_for_a_compiler(tiny: Smol, engine: Any) -> None:
    """What log probabilities need is compiled while the engine is loaded, for any number of sequences."""
    import torch
    from torch._dynamo.utils import counters

    from backends.vllm.warm_up import compile_logprobs

    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    compile_logprobs(engine._engine)
    compiled = counters["stats"]["unique_graphs"]
    assert compiled > before
    for prompts in PROMPTS[:1], PROMPTS[:3]:
        tiny.outputs(engine, *(tiny.add(engine, prompt, logprobs=2, max_tokens=2) for prompt in prompts))
    assert counters["stats"]["unique_graphs"] == compiled


def test_length_and_end_of_sequence(tiny: Smol, engine: Backend) -> None:
    eos = min(tiny.tokenizer.eos_token_ids)
    ended = tiny.add(engine, PROMPTS[0], logit_bias={eos: 100.0})
    stopped = tiny.add(engine, PROMPTS[0], logit_bias={eos: 100.0}, stop_token_ids=(eos,), ignore_eos=True)
    outputs = tiny.outputs(engine, ended, stopped)
    assert outputs[ended][-1].finish_reason is FinishReason.EOS_TOKEN
    assert outputs[stopped][-1].finish_reason is FinishReason.STOP_SEQUENCE


# Agreement with transformers


@pytest.fixture(scope="module")
def reference(smol: Smol) -> Iterator[Backend]:
    backend = smol.load("transformers", dtype="fp32", max_model_len=512)
    yield backend
    backend.close()


def test_greedy_matches_transformers(smol: Smol, plain: Backend, reference: Backend) -> None:
    """12 prompts of 12 tokens in float32. Where the texts differ, the two candidates must be a tie."""
    wanted: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 2}

    def generate(backend: Backend) -> list[list[TokenOutput]]:
        ids = [smol.add(backend, prompt, **wanted) for prompt in PROMPTS]
        outputs = smol.outputs(backend, *ids)
        return [outputs[request_id] for request_id in ids]

    ties = 0
    for ours, theirs in zip(generate(plain), generate(reference), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            if one.token_ids == other.token_ids:
                continue
            assert one.top_logprobs is not None
            best = dict(one.top_logprobs[0])
            assert math.isclose(best[one.token_ids[0]], best[other.token_ids[0]], abs_tol=1e-3), "no tie"
            ties += 1
            break  # from here on, the texts differ
    assert ties <= 2


def test_prompt_logprobs_match_transformers(smol: Smol, plain: Backend, reference: Backend) -> None:
    """In float32, for each prompt token and the five best tokens per position. Ties may be in any order."""

    def first_outputs(backend: Backend) -> list[TokenOutput]:
        ids = [smol.add(backend, prompt, max_tokens=1, prompt_logprobs=5) for prompt in PROMPTS[:4]]
        outputs = smol.outputs(backend, *ids)
        return [outputs[request_id][0] for request_id in ids]

    assert "prompt_logprobs" not in plain.capabilities.unsupported
    for ours, theirs in zip(first_outputs(plain), first_outputs(reference), strict=True):
        assert ours.prompt_logprobs is not None
        assert theirs.prompt_logprobs is not None
        assert len(theirs.prompt_top_logprobs or ()) == len(theirs.prompt_logprobs)
        assert ours.prompt_logprobs[0] is theirs.prompt_logprobs[0] is None
        assert ours.prompt_logprobs[1:] == pytest.approx(theirs.prompt_logprobs[1:], abs=1e-3)
        for one, other in zip(ours.prompt_top_logprobs or (), theirs.prompt_top_logprobs or (), strict=True):
            assert (one is None) == (other is None)
            assert [value for _, value in one or ()] == pytest.approx([value for _, value in other or ()], abs=1e-3)
            for token in dict(one or ()).keys() & dict(other or ()).keys():
                assert dict(one or ())[token] == pytest.approx(dict(other or ())[token], abs=1e-3)
            assert len(dict(one or ()).keys() - dict(other or ()).keys()) <= 1, "but for a tie, they are the same"


def test_prompt_logprobs_with_adapters_need_a_gpu(engine: Backend) -> None:
    import torch

    assert ("prompt_logprobs" in engine.capabilities.unsupported) == (not torch.cuda.is_available())


def test_speculation_and_preemptions_are_counted(tiny: Smol, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has room for a few prompts, but not for their answers too, which repeat the prompt."""
    from vllm.v1.spec_decode import ngram_proposer

    monkeypatch.delitem(
        sys.modules, "llvmlite.binding.ffi", raising=False
    )  # as `without_flask` has it, which was before
    for name in ("batch_propose_numba", "_find_longest_matched_ngram_and_propose_tokens"):
        # To compile them would take most of the time.
        monkeypatch.setattr(ngram_proposer, name, getattr(ngram_proposer, name).py_func)
    ngrams = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    extra = {"num_gpu_blocks_override": "8", "speculative_config": json.dumps(ngrams)}
    backend = tiny.load("vllm", **EXACT | {"extra": SMALL | extra})
    ids = [tiny.add(backend, f"{number} {PROMPTS[7] * 12}", max_tokens=120, ignore_eos=True) for number in range(6)]
    for _ in range(20):
        backend.step()
    backend.abort(ids[0])
    of_one = backend.counters
    tiny.outputs(backend, *ids[1:])
    counters = backend.counters
    assert 0 < of_one.spec_decode_num_accepted_tokens <= of_one.spec_decode_num_draft_tokens <= 20 * 3
    assert of_one.spec_decode_num_draft_tokens < counters.spec_decode_num_draft_tokens
    assert 60 < counters.spec_decode_num_accepted_tokens < 6 * 120
    assert counters.num_preemptions > 0
    backend.close()
