"""serving.properties -> the arguments of `tensorrt_llm.LLM`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensorrt_llm.llmapi import CapacitySchedulerPolicy, KvCacheConfig, SchedulerConfig

from backends.tensorrt_llm import DECLARATION
from backends.tensorrt_llm.lora import lora_config
from backends.tensorrt_llm.options import DEFAULT_BATCH_SIZE, TensorRTLLMOptions
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

logger = logging.getLogger(__name__)

# The engine's default sampler silently ignores `seed`, the penalties and `min_p`. Its log probabilities may lack the
# sampled token.
SAMPLER_TYPE = "TRTLLMSampler"

DTYPES = {"auto": "auto", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

_SAME_NAME = (
    "tokenizer",
    "tokenizer_mode",
    "tokenizer_revision",
    "load_format",
    "enable_chunked_prefill",
    "guided_decoding_backend",
    "max_input_len",
    "max_beam_width",
    "attn_backend",
    "gather_generation_logits",
    "context_parallel_size",
    "moe_tensor_parallel_size",
    "moe_expert_parallel_size",
    "enable_attention_dp",
)
"""Options with the same name as the argument of `LLM`."""

_KV_CACHE = {
    "enable_block_reuse": "enable_kv_cache_reuse",
    "max_tokens": "max_tokens",
    "sink_token_length": "sink_token_length",
    "host_cache_size": "host_cache_size",
    "onboard_blocks": "onboard_blocks",
    "cross_kv_cache_fraction": "cross_kv_cache_fraction",
    "secondary_offload_min_priority": "secondary_offload_min_priority",
    "event_buffer_max_size": "event_buffer_max_size",
    "dtype": "kv_cache_dtype",
    "tokens_per_block": "tokens_per_block",
}
"""Argument of `KvCacheConfig` -> option."""


def llm_arguments(
    path: Path, properties: ServingProperties, *, max_model_len: int, adapters: Mapping[str, Path]
) -> dict[str, Any]:
    """Return the keyword arguments for the checkpoint in `path`. Raises `ConfigError` with the name of the option."""
    _check_quantize(path, properties)
    given, options = DECLARATION.values(properties), properties.options_of(TensorRTLLMOptions)
    DECLARATION.check_choices(properties)
    for name, reason in DECLARATION.without_effect.items():
        if name in given:
            logger.warning(f"option.{name} has no effect: {reason}", extra={"option": f"option.{name}"})
    arguments = {
        "model": str(path),
        "skip_tokenizer_init": _skip_tokenizer_init(properties, options),
        "trust_remote_code": properties.trust_remote_code,
        "dtype": DTYPES[properties.dtype],
        "tensor_parallel_size": _tensor_parallel_size(properties, options),
        "pipeline_parallel_size": properties.pipeline_parallel_degree,
        "max_batch_size": max_batch_size(properties),
        "max_seq_len": max_model_len,
        "sampler_type": SAMPLER_TYPE,
        # The engine's default is false: prompts longer than `max_num_tokens` (8,192) would be refused.
        "enable_chunked_prefill": True,
        "kv_cache_config": KvCacheConfig(**_kv_cache_arguments(given)),
    }
    arguments |= {name: given[name] for name in _SAME_NAME if name in given}
    if (max_num_tokens := _max_num_tokens(properties, options)) is not None:
        arguments["max_num_tokens"] = max_num_tokens
    if options.batch_scheduler_policy is not None:
        arguments["scheduler_config"] = SchedulerConfig(
            capacity_scheduler_policy=_scheduler_policy(options.batch_scheduler_policy)
        )
    if options.enable_overlap_scheduler is not None:
        arguments["disable_overlap_scheduler"] = not options.enable_overlap_scheduler
    if options.use_cuda_graph is False:
        arguments["cuda_graph_config"] = None
    if properties.enable_lora:
        arguments["enable_lora"] = True
        arguments["lora_config"] = lora_config(properties, adapters)
    return arguments


def max_batch_size(properties: ServingProperties) -> int:
    """Return the maximum number of sequences that run at the same time."""
    return (properties.max_rolling_batch_size or DEFAULT_BATCH_SIZE) if properties.rolling else properties.batch_size


def choose_max_model_len(path: Path, properties: ServingProperties) -> int:
    """Return `option.max_model_len`, or the sum of LMI's two older options, or the checkpoint's own limit.

    Raises `ConfigError` if none of them is known.
    """
    if properties.max_model_len is not None:
        return properties.max_model_len
    options = properties.options_of(TensorRTLLMOptions)
    if options.max_input_len is not None and options.max_output_len is not None:
        return options.max_input_len + options.max_output_len
    config = _read_config(path)
    config = config.get("text_config") or config
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    if not isinstance(limit, int):
        raise ConfigError("option.max_model_len must be set, because the model's config.json has no limit")
    return limit


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"option.model_id: TensorRT-LLM needs a checkpoint with a config.json: {error}") from error
    return config


def _check_quantize(path: Path, properties: ServingProperties) -> None:
    if properties.quantize is None or (path / "hf_quant_config.json").exists():
        return
    if "quantization_config" not in _read_config(path):
        raise ConfigError(
            f"option.quantize: TensorRT-LLM 1.2 does not quantise while it loads, and {path} is not quantised; "
            f"use a checkpoint that is already quantised with {properties.quantize}"
        )


def _skip_tokenizer_init(properties: ServingProperties, options: TensorRTLLMOptions) -> bool:
    """Tell whether the engine runs without its tokenizer. Only grammars need it."""
    guided = properties.guided_decoding_backend is not None
    if guided and options.skip_tokenizer_init:
        raise ConfigError("option.skip_tokenizer_init: option.guided_decoding_backend needs the tokenizer")
    return not guided if options.skip_tokenizer_init is None else options.skip_tokenizer_init


def _tensor_parallel_size(properties: ServingProperties, options: TensorRTLLMOptions) -> int:
    if properties.tensor_parallel_degree != "max":
        return properties.tensor_parallel_degree
    others = properties.pipeline_parallel_degree * (options.context_parallel_size or 1)
    return max(1, torch.cuda.device_count() // others)


def _max_num_tokens(properties: ServingProperties, options: TensorRTLLMOptions) -> int | None:
    asked, other = options.max_num_tokens, properties.max_rolling_batch_prefill_tokens
    if asked is not None and other is not None and asked != other:
        raise ConfigError(
            f"option.max_num_tokens: {asked} and option.max_rolling_batch_prefill_tokens={other} set the same limit"
        )
    return other if asked is None else asked


def _scheduler_policy(text: str) -> Any:
    try:
        return CapacitySchedulerPolicy(text.upper())
    except ValueError as error:
        known = ", ".join(policy.value.lower() for policy in CapacitySchedulerPolicy)
        raise ConfigError(
            f"option.batch_scheduler_policy: TensorRT-LLM supports {known}, not {_shown(text)}"
        ) from error


def _kv_cache_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {name: given[option] for name, option in _KV_CACHE.items() if option in given}
    # This is a share of the memory that is free after loading the weights. The engine has no option for a share of all.
    fraction = given.get("kv_cache_free_gpu_mem_fraction", given.get("gpu_memory_utilization"))
    if fraction is not None:
        arguments["free_gpu_memory_fraction"] = fraction
    if "max_attention_window" in given:
        arguments["max_attention_window"] = _max_attention_window(given["max_attention_window"])
    return arguments


def _max_attention_window(text: str) -> list[int]:
    try:
        windows = [int(part) for part in text.strip("[] ").split(",")]
    except ValueError:
        windows = []
    if not windows or min(windows) < 1:
        raise ConfigError(
            f"option.max_attention_window: must be positive integers separated by commas, not {_shown(text)}"
        )
    return windows


def _shown(text: str) -> str:
    return f"{text!r:.60}"
