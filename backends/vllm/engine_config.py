"""Turns vLLM's `EngineArgs` and the model's files into the engine's configuration, and adjusts it."""

from __future__ import annotations

import dataclasses

import torch
from vllm import EngineArgs
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase
from vllm.usage.usage_lib import UsageContext

from backends.cpu_dtype import choose_cpu_dtype
from backends.vllm.model_runner import typical_processor

AUTO = "auto"


def engine_config(arguments: EngineArgs) -> VllmConfig:
    """Return the engine's configuration for the model, with our dtype, logits processor and counters. May raise anything."""
    config = _create(arguments)
    if config.model_config.quantization is None:  # quantized models support few dtypes
        chosen = own = _own_dtype(arguments, config)
        if current_platform.is_cpu():
            chosen = choose_cpu_dtype(None if arguments.dtype == AUTO else own, own)
        if chosen != config.model_config.dtype:
            config = _create(dataclasses.replace(arguments, dtype=str(chosen).removeprefix("torch.")))
    if config.speculative_config is not None and config.observability_config.per_request_spec_decode_metrics == "none":
        config.observability_config.per_request_spec_decode_metrics = "summary"  # for the engine's counters
    processor = typical_processor(config)
    config.model_config.logits_processors = None if processor is None else [processor]
    return config


def _own_dtype(arguments: EngineArgs, config: VllmConfig) -> torch.dtype:
    """Return vLLM's choice, but float32 for a model in float32 that pools: vLLM would compute it in float16."""
    model = config.model_config
    own: torch.dtype = model.dtype
    if arguments.dtype != AUTO or model.runner_type != "pooling":
        return own
    of_files = ModelArchConfigConvertorBase.get_torch_dtype(
        model.hf_config, model.model, revision=None, config_format=model.config_format
    )
    return torch.float32 if of_files == torch.float32 else own


def _create(arguments: EngineArgs) -> VllmConfig:
    return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)  # `vllm serve`'s, for the same defaults
