"""Serves GGUF files and safetensors on a CPU with OpenVINO, with a rolling batch over a paged KV cache.

Needs torch only to convert safetensors, once.
"""

from __future__ import annotations

import sys

from backends.openvino.options import OpenVinoOptions
from backends.paged.options import DEFAULT_BATCH_SIZE
from lmi_handlers.config.declaration import BackendDeclaration, GgufFormats

# Otherwise `import openvino` sends statistics of its use over the network. Without this package it goes without.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: the import fails

DECLARATION = BackendDeclaration(
    name="openvino",
    location="backends.openvino.backend:OpenVinoBackend",
    requires=("openvino", "openvino_genai", "gguf", "llguidance"),
    install="lmi-handlers[openvino]",
    options=OpenVinoOptions,
    reads=(
        "model_id",
        "trust_remote_code",
        "dtype",
        "quantize",
        "max_rolling_batch_size",
        "max_rolling_batch_prefill_tokens",
        "max_model_len",
        "kv_cache_memory_bytes",
    ),
    choices={"quantize": ("int8", "int4")},
    defaults={"max_rolling_batch_size": DEFAULT_BATCH_SIZE},
    precision="backends.openvino.precision:choose_precision",
    reads_gguf=GgufFormats(("llama", "qwen2", "qwen3"), ("F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")),
    architectures=(
        "Ernie4_5ForCausalLM",
        "GemmaForCausalLM",
        "GraniteForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Olmo2ForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
        "Starcoder2ForCausalLM",
    ),
    priority=5,
    cpu_only=True,
    rolling_batch=("openvino",),
    unsupported={
        "watermark": "transformers' processors, which need torch, are not used",
        "adapters": "the weights are served as they are; `auto` takes transformers if `option.enable_lora` is on",
    },
)
