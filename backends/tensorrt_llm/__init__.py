"""TensorRT-LLM 1.2, used through its `LLM` class on the PyTorch runtime."""

from __future__ import annotations

REQUIRES = ("tensorrt_llm",)

EXTRA = "trtllm"

UNSUPPORTED = {
    "typical_p": "TensorRT-LLM has no typical sampling",
    "bad_words": "TensorRT-LLM takes them only together with texts to stop at, which are matched outside the engine here",
    "allowed_token_ids": "TensorRT-LLM has no such parameter",
    "watermark": "TensorRT-LLM has no such parameter",
}

SAMPLED_DEFAULTS = {"temperature": 0.8, "top_k": 5, "top_p": 0.85}
"""LMI's documented defaults for this engine, used if a request sets `do_sample` but not these parameters."""
