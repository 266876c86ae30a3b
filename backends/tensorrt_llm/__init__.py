"""TensorRT-LLM 1.2 through its `LLM` class, on its PyTorch runtime."""

from __future__ import annotations

from backends.tensorrt_llm.backend import TensorRTLLMBackend

__all__ = ["TensorRTLLMBackend"]
