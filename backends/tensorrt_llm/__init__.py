"""TensorRT-LLM 1.2, used through its `LLM` class on the PyTorch runtime."""

from __future__ import annotations

from backends.tensorrt_llm.options import DEFAULT_BATCH_SIZE, NO_COUNTERPART, TensorRTLLMOptions
from lmi_handlers.config.declaration import BackendDeclaration, LmiHandler

DECLARATION = BackendDeclaration(
    name="tensorrt_llm",
    location="backends.tensorrt_llm.backend:TensorRTLLMBackend",
    requires=("tensorrt_llm",),
    install="lmi-handlers[trtllm]",
    options=TensorRTLLMOptions,
    reads=(
        "model_id",
        "revision",
        "trust_remote_code",
        "max_rolling_batch_size",
        "max_rolling_batch_prefill_tokens",
        "max_model_len",
        "dtype",
        "quantize",
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "gpu_memory_utilization",
        "load_format",
        "kv_cache_dtype",
        "moe_backend",
        "tokenizer_mode",
        "tokenizer_revision",
        "enable_chunked_prefill",
        "guided_decoding_backend",
        "enable_lora",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
    ),
    choices={
        "dtype": ("auto", "fp32", "fp16", "bf16"),
        "guided_decoding_backend": ("xgrammar", "llguidance"),
        "tokenizer_mode": ("auto", "slow"),
    },
    defaults={"max_rolling_batch_size": DEFAULT_BATCH_SIZE},
    without_effect=NO_COUNTERPART,
    priority=10,
    gpus=("NVIDIA",),
    rolling_batch=("trtllm", "tensorrt_llm"),
    aliases=("pytorch",),  # the usual value of an option of LMI's handler that has the same name
    handlers={
        "djl_python.tensorrt_llm": LmiHandler(rolling_batch="trtllm"),
        "djl_python.lmi_trtllm.trtllm_async_service": LmiHandler(rolling_batch="trtllm", asynchronous=True),
    },
    unsupported={
        "typical_p": "TensorRT-LLM has no typical sampling",
        "bad_words": "TensorRT-LLM only supports them together with stop strings, which are matched outside the engine here",
        "allowed_token_ids": "TensorRT-LLM has no parameter for them",
        "watermark": "TensorRT-LLM has no parameter for it",
        "prompt_lookup_num_tokens": "TensorRT-LLM has it for the whole engine only: option.speculative_config",
        "thinking_token_budget": "TensorRT-LLM has no parameter for it",
        "continuation": "TensorRT-LLM would count the answer so far as part of the prompt",
    },
    sampled_defaults={"temperature": 0.8, "top_k": 5, "top_p": 0.85},  # documented by LMI
)
