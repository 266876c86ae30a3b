"""The names that the library publishes here."""

from __future__ import annotations

from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.result import CompletionOutput, RequestOutput
from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.llmapi.llm_args import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    DynamicBatchConfig,
    KvCacheConfig,
    SchedulerConfig,
    TorchLlmArgs,
)
from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams

__all__ = [
    "LLM",
    "CapacitySchedulerPolicy",
    "CompletionOutput",
    "ContextChunkingPolicy",
    "DynamicBatchConfig",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LoRARequest",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "TorchLlmArgs",
]
