"""Serves any causal language model of the transformers library, with a rolling batch on CPU and GPU."""

from __future__ import annotations

from backends.paged.options import DEFAULT_BATCH_SIZE, DEFAULT_MAX_LORA_RANK, DEFAULT_MAX_LORAS
from backends.transformers.options import TransformersOptions
from lmi_handlers.config.declaration import BackendDeclaration, LmiHandler

DECLARATION = BackendDeclaration(
    name="transformers",
    location="backends.transformers.backend:TransformersBackend",
    pooling="backends.transformers.pooling_backend:PoolingBackend",
    requires=("torch", "transformers", "accelerate"),
    requires_with={"quantize=bitsandbytes8": "bitsandbytes", "quantize=bitsandbytes4": "bitsandbytes"},
    install="lmi-handlers[transformers]",
    options=TransformersOptions,
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
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "limit_mm_per_prompt",
        "chat_embeddings",
        "enable_lora",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
    ),
    choices={"dtype": ("auto", "fp32", "fp16", "bf16"), "quantize": ("bitsandbytes8", "bitsandbytes4")},
    defaults={
        "max_rolling_batch_size": DEFAULT_BATCH_SIZE,
        "max_loras": DEFAULT_MAX_LORAS,
        "max_lora_rank": DEFAULT_MAX_LORA_RANK,
    },
    replicates=True,
    rolling_batch=("scheduler",),
    handlers={"djl_python.huggingface": LmiHandler()},
    untested=(
        "Anything on a GPU. Attention copies each layer's blocks into one padded batch before it computes, which was chosen "
        "for CPUs with 16-bit types; how fast that is on a GPU is not known.",
        "`option.quantize=bitsandbytes4` and `bitsandbytes8`: the option reaches transformers' `BitsAndBytesConfig`, but "
        "no model has been loaded with it.",
        "The continuous batching of transformers itself, with paged attention and CUDA graphs, is not used: its scheduler, "
        "block manager and sampler come with it, and per request it takes only temperature, `top_k` and `top_p`, so seeds, "
        "grammars and penalties would be lost. It is slower than `generate` on a CPU; on a GPU it may well be faster than "
        "this backend.",
    ),
)
