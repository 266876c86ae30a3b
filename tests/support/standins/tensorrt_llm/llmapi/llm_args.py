"""The engine's arguments, strict."""

from __future__ import annotations

from typing import Any

import tensorrt_llm.lora_helper  # noqa: F401  makes LoraConfig known as a type
from tensorrt_llm.contract import enum_of, model_of

CapacitySchedulerPolicy = enum_of("CapacitySchedulerPolicy")
ContextChunkingPolicy = enum_of("ContextChunkingPolicy")
DynamicBatchConfig = model_of("DynamicBatchConfig")
SchedulerConfig = model_of("SchedulerConfig")
PeftCacheConfig = model_of("PeftCacheConfig")


def _validate_kv_cache(self: Any) -> None:
    if self.free_gpu_memory_fraction is not None and not 0 <= self.free_gpu_memory_fraction <= 1:
        raise ValueError("kv_cache_config.free_gpu_memory_fraction must be a float between 0 and 1")
    if self.max_gpu_total_bytes < 0:
        raise ValueError("kv_cache_config.max_gpu_total_bytes must not be negative")
    if self.max_attention_window is not None and not (
        self.max_attention_window and all(window > 0 for window in self.max_attention_window)
    ):
        raise ValueError("kv_cache_config.max_attention_window must be a list of positive integers")


KvCacheConfig = model_of("KvCacheConfig", validate=_validate_kv_cache)


def _validate_llm(self: Any) -> None:
    if self.max_beam_width is None:
        self.max_beam_width = 1
    if self.max_batch_size is None:
        self.max_batch_size = 2048
    # The names themselves are in no published list; these two are.
    if isinstance(self.load_format, str) and self.load_format.lower() not in ("auto", "dummy", "loadformat.auto"):
        raise ValueError(f"Invalid LoadFormat: {self.load_format}")


TorchLlmArgs = model_of("TorchLlmArgs", "BaseLlmArgs", validate=_validate_llm)
