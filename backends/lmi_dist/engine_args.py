"""serving.properties -> the arguments of `lmi_dist.arg_utils.VllmEngineArgs`."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Any

from backends.lmi_dist import DECLARATION
from backends.lmi_dist.options import LmiDistOptions
from backends.vllm.options import DEFAULT_BATCH_SIZE
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

logger = logging.getLogger(__name__)

DTYPES = {"auto": "auto", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

_ARGUMENTS = {
    "max_model_len": "max_model_len",
    "enforce_eager": "enforce_eager",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_rolling_batch_prefill_tokens": "max_num_batched_tokens",
    "load_format": "load_format",
    "quantize": "quantization",
    "max_loras": "max_loras",
    "max_lora_rank": "max_lora_rank",
    "fully_sharded_loras": "fully_sharded_loras",
    "lora_extra_vocab_size": "lora_extra_vocab_size",
    "lora_dtype": "lora_dtype",
    "max_cpu_loras": "max_cpu_loras",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "cpu_offload_gb_per_gpu": "cpu_offload_gb",
    "enable_prefix_caching": "enable_prefix_caching",
    "tokenizer_mode": "tokenizer_mode",
    "speculative_draft_model": "draft_model",
    "speculative_length": "speculate_length",
    "draft_model_tp_size": "draft_model_tp_size",
}
"""Option -> LMI's argument for it. Only options that are set are passed."""

_NO_COUNTERPART = (
    "device",
    "preloaded_model",
    "tokenizer_revision",
    "max_logprobs",
    "kv_cache_dtype",
    "guided_decoding_backend",
    "kv_cache_memory_bytes",
    "record_acceptance_rate",
    "speculative_telemetry",
)
"""Options of the vLLM family that LMI does not pass to lmi_dist."""


def engine_arguments(path: Path, properties: ServingProperties) -> dict[str, Any]:
    """Return the keyword arguments for the checkpoint in `path`. Raises `ConfigError` with the name of the option."""
    for name in DECLARATION.passed_on(properties):
        if name in properties.extra:
            raise ConfigError(f"option.{name}: neither this server nor lmi_dist has this option")
        logger.warning(f"option.{name} has no effect on backend {DECLARATION.name}: only other backends read it")
    DECLARATION.check_choices(properties)
    given, options = DECLARATION.values(properties), properties.options_of(LmiDistOptions)
    if options.distributed_executor_backend is not None:
        raise ConfigError("option.distributed_executor_backend: lmi_dist does not have this option")
    if options.speculative_draft_model is not None and properties.enable_lora:
        raise ConfigError("option.speculative_draft_model and option.enable_lora cannot be used together")
    for name in _NO_COUNTERPART:
        if name in given:
            logger.warning(f"option.{name} has no effect: LMI does not pass it to lmi_dist")
    arguments = {
        "model": str(path),
        "dtype": DTYPES[properties.dtype],
        # LMI always passes 0, so unseeded requests get the same samples after every restart.
        "seed": secrets.randbits(32),
        "tensor_parallel_size": _one_gpu(properties),
        "max_num_seqs": max_num_seqs(properties),
        "trust_remote_code": properties.trust_remote_code,
        "enable_lora": properties.enable_lora,
    }
    arguments |= {argument: given[option] for option, argument in _ARGUMENTS.items() if option in given}
    if options.long_lora_scaling_factors is not None:
        arguments["long_lora_scaling_factors"] = _scaling_factors(options.long_lora_scaling_factors)
    return arguments


def max_num_seqs(properties: ServingProperties) -> int:
    """Return the maximum number of sequences that run at the same time."""
    return (properties.max_rolling_batch_size or DEFAULT_BATCH_SIZE) if properties.rolling else properties.batch_size


def _one_gpu(properties: ServingProperties) -> int:
    """Return 1. Raises `ConfigError` for more GPUs.

    LMI runs lmi_dist under MPI with one process per GPU, and these must step together. Here there is only one process.
    """
    for name in ("tensor_parallel_degree", "pipeline_parallel_degree"):
        degree = getattr(properties, name)
        if degree not in ("max", 1):
            raise ConfigError(
                f"option.{name}: must be 1 with lmi_dist, which would need MPI for {degree}; use option.rolling_batch=vllm"
            )
    return 1


def _scaling_factors(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.strip("()[] ").split(","))
    except ValueError as error:
        raise ConfigError(
            f"option.long_lora_scaling_factors: must be numbers separated by commas, not {text!r:.60}"
        ) from error
