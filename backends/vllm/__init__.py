"""vLLM 0.32, driven step by step in the engine process."""

from __future__ import annotations

import logging
import os

from backends.continuation import CONTINUED
from backends.vllm.arguments import QUANTIZATIONS
from backends.vllm.options import DEFAULT_BATCH_SIZE, DEFAULT_MAX_LORAS, NO_COUNTERPART, VLLMOptions
from lmi_handlers.config.declaration import BackendDeclaration, LmiHandler

LOG_LEVEL = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR").upper()
"""vLLM's warnings are mostly about its internals, so they are off. `VLLM_LOGGING_LEVEL` brings them back."""

logging.getLogger("vllm").setLevel(LOG_LEVEL)  # must happen before vLLM is imported, because the import already logs

DECLARATION = BackendDeclaration(
    name="vllm",
    location="backends.vllm.backend:VLLMBackend",
    pooling="backends.vllm.pooling_backend:VLLMPoolingBackend",
    requires=("vllm", "llguidance"),
    install="lmi-handlers[vllm]",
    options=VLLMOptions,
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
        "kv_cache_memory_bytes",
        "load_format",
        "kv_cache_dtype",
        "moe_backend",
        "tokenizer_mode",
        "tokenizer_revision",
        "enable_chunked_prefill",
        "guided_decoding_backend",
        "limit_mm_per_prompt",
        "max_audio_seconds",
        "enable_lora",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
    ),
    choices={"quantize": QUANTIZATIONS},
    defaults={"max_rolling_batch_size": DEFAULT_BATCH_SIZE, "max_loras": DEFAULT_MAX_LORAS},
    without_effect=NO_COUNTERPART,
    remote={"distributed_executor_backend": "ray"},
    passes_options=True,
    priority=20,
    gpus=("NVIDIA", "AMD"),
    handlers={"djl_python.lmi_vllm.vllm_async_service": LmiHandler(rolling_batch="vllm", asynchronous=True)},
    unsupported={
        "watermark": "vLLM only supports a different watermark, which is chosen for the whole engine",
        "prompt_lookup_num_tokens": "vLLM has it for the whole engine only: the method `ngram` in `option.speculative_config`",
    },
    # vLLM uses its second model runner on GPUs and the first on CPUs.
    conditional={
        "temperature": "at most 2",
        "typical_p": "not supported with speculative decoding, nor with `option.async_scheduling` on the first model runner",
        "prompt_logprobs": "not supported with `option.enable_lora` on a CPU",
        "seed": "not supported on a CPU with `option.enable_chunked_prefill=true`",
        "allowed_token_ids": "at most 1024 on the second model runner",
        "logit_bias": "at most 1024 tokens on the second model runner",
        "stop_token_ids": "at most 128 together with `min_tokens` on the second model runner",
        "cache_salt": "not supported with a connector that is not known to keep salts apart, such as `LMCacheConnectorV1`",
        "thinking_token_budget": "not supported on the first model runner for gpt-oss, whose thoughts end in several ways",
        "continuation": CONTINUED,
        "bad_words": "at most 128, and on the second model runner at most 1024 tokens in total",
    },
    untested=(
        "Compiled kernels, quantisation and CUDA graphs. The tests run the second model runner on a CPU with its Triton "
        "kernels interpreted, and let vLLM validate its configuration as if there were eight H100s.",
        "Asynchronous scheduling, which vLLM turns on for GPUs: a step returns the tokens of the previous one, and one batch "
        "is still in flight when the last request ends.",
        "Loading time with `torch.compile` and CUDA graphs, compared with `option.model_loading_timeout`.",
        "`option.lmcache_auto_config`: vLLM offloads nothing from a CPU. The tests compare the configuration that vLLM makes "
        "of it, as if there were eight H100s; LMCache itself is never installed.",
        "More than one GPU: NCCL, and workers that die inside a collective operation.",
        "More than one machine: the tests run two workers on CPUs, on two nodes of Ray on one machine.",
        "Memory: whether `option.gpu_memory_utilization` leaves enough for prompt log probabilities and images. Running out "
        "of memory during a step ends the engine, which is then restarted.",
        "Images: vLLM may run a model's processor on the GPU while the engine is stepping.",
        "Samples: the second model runner has its own random generator, so the same seed gives other tokens than on a CPU. "
        "It applies `typical_p` before `min_p` instead of after it.",
    ),
)
