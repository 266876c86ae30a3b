"""The TensorRT-LLM adapter: options become arguments of the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorrt_llm_adapter import EOS, MAX_MODEL_LEN, VOCAB_SIZE, Load, TensorRTLLMBackend, engine, loading

from backends.base import ModelFiles
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with loading(tmp_path) as load:
        yield load


def test_options_become_arguments(load: Load) -> None:
    backend = load(
        tensor_parallel_degree=2,
        pipeline_parallel_degree=2,
        max_rolling_batch_size=17,
        max_rolling_batch_prefill_tokens=123,
        max_model_len=40,
        dtype="bf16",
        trust_remote_code=True,
        enable_chunked_prefill=True,
        batch_scheduler_policy="max_utilization",
        enable_overlap_scheduler=False,
        use_cuda_graph=False,
        kv_cache_free_gpu_mem_fraction=0.5,
        enable_kv_cache_reuse=False,
        tokens_per_block=64,
        kv_cache_dtype="fp8",
        max_attention_window="1024, 2048",
        host_cache_size=4096,
        max_tokens=99,
        enable_lora=True,
        max_loras=3,
        max_lora_rank=8,
        max_input_len=30,
        attn_backend="FLASHINFER",
    )
    args = engine(backend).args
    expected = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "max_batch_size": 17,
        "max_num_tokens": 123,
        "max_seq_len": 40,
        "dtype": "bfloat16",
        "trust_remote_code": True,
        "skip_tokenizer_init": True,
        "enable_chunked_prefill": True,
        "disable_overlap_scheduler": True,
        "cuda_graph_config": None,
        "enable_lora": True,
        "max_input_len": 30,
        "attn_backend": "FLASHINFER",
    }
    assert {name: getattr(args, name) for name in expected} == expected
    assert args.scheduler_config.capacity_scheduler_policy.value == "MAX_UTILIZATION"
    assert (args.lora_config.max_loras, args.lora_config.max_lora_rank, args.lora_config.max_cpu_loras) == (3, 8, None)
    cache = args.kv_cache_config
    assert (cache.free_gpu_memory_fraction, cache.enable_block_reuse, cache.tokens_per_block) == (0.5, False, 64)
    assert (cache.dtype, cache.max_attention_window, cache.host_cache_size) == ("fp8", [1024, 2048], 4096)
    assert cache.max_tokens == 99


def test_engine_defaults(load: Load) -> None:
    args = engine(load()).args
    assert (args.max_num_tokens, args.max_seq_len, args.dtype) == (8192, MAX_MODEL_LEN, "auto")
    assert args.kv_cache_config.free_gpu_memory_fraction == 0.9
    assert args.enable_chunked_prefill


def test_tokenizer_only_for_grammars(load: Load) -> None:
    args = engine(load(guided_decoding_backend="xgrammar")).args
    assert (args.guided_decoding_backend, args.skip_tokenizer_init) == ("xgrammar", False)


def test_dynamic_batch_size(load: Load) -> None:
    assert engine(load(rolling_batch="disable", batch_size=5)).args.max_batch_size == 5


def test_option_without_counterpart_is_logged(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    load(batching_type="inflight")
    assert [getattr(record, "option", None) for record in caplog.records] == ["option.batching_type"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "option.dtype"),
        ({"guided_decoding_backend": "outlines"}, "option.guided_decoding_backend"),
        ({"guided_decoding_backend": "xgrammar", "skip_tokenizer_init": True}, "option.skip_tokenizer_init"),
        ({"tokenizer_mode": "fast"}, "option.tokenizer_mode"),
        ({"batch_scheduler_policy": "greedy"}, "option.batch_scheduler_policy"),
        ({"max_attention_window": "many"}, "option.max_attention_window"),
        ({"max_attention_window": "0"}, "option.max_attention_window"),
        ({"max_num_tokens": 5, "max_rolling_batch_prefill_tokens": 6}, "option.max_num_tokens"),
        ({"quantize": "awq"}, "option.quantize"),
        ({"load_format": "gguf"}, "Invalid LoadFormat: gguf"),
        ({"tensor_parallel_degree": 16}, "Only 8 GPUs are available, but 16 are required"),
    ],
)
def test_invalid_option(load: Load, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        load(**options)
    assert "\n" not in str(raised.value)


def test_checkpoint_that_is_already_quantised(load: Load, tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text("{}")
    load(quantize="fp8")


def test_model_without_a_length(load: Load, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE}))
    with pytest.raises(ConfigError, match=r"option.max_model_len"):
        load()
    assert load(max_model_len=20).capabilities.max_model_len == 20


@pytest.mark.parametrize("path", [None, Path("model.gguf")])
def test_no_checkpoint(path: Path | None) -> None:
    with pytest.raises(ConfigError, match=r"option.model_id"):
        TensorRTLLMBackend.load(
            ModelFiles(path=path, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE), ServingProperties(), lambda phase: None
        )
