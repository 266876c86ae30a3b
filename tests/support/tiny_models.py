"""Small models of several architectures with random weights, in float32."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCAB_SIZE = 128
EOS = 2
MAX_LEN = 96

TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.4,  # large enough that attention decides the next token
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": MAX_LEN}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
# In sequences of more than 16 tokens all positions are rotated differently, so they need a forward of their own.
LONGROPE = {
    "original_max_position_embeddings": 16,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.5, 2.5, 4.0, 8.0],
    },
}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral_sliding_window": ("MistralConfig", {"sliding_window": 5}),
    "gemma2_softcap": (
        "Gemma2Config",
        {"sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    ),
    "gemma3_sliding_window": ("Gemma3TextConfig", {"sliding_window": 5, "query_pre_attn_scalar": 8}),
    "gpt2": ("GPT2Config", GPT2),
    "mixtral": ("MixtralConfig", MOE),
    "gpt_oss_sinks": ("GptOssConfig", MOE | {"sliding_window": 8}),
}
SLOW_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomConfig", {"n_layer": 2, "n_head": 4}),
    "mamba": ("MambaConfig", {"state_size": 4, "num_hidden_layers": 2}),
    "phi3_longrope": ("Phi3Config", LONGROPE),
}
"""Models that the rolling batch does not support."""


HYBRID_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon_h1": (
        "FalconH1Config",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16},
    ),
    "recurrent_gemma": ("RecurrentGemmaConfig", {"lru_width": 32, "attention_window_size": 8}),
}
"""Models with attention and another kind of state."""


def make_model(name: str) -> Any:
    """Build a model. Its weights are the same on every call."""
    config_class, options = (CONFIGS | SLOW_CONFIGS | HYBRID_CONFIGS)[name]
    config = getattr(transformers, config_class)(**(TINY | options))
    torch.manual_seed(5)
    attention = {"attn_implementation": "eager"} if name.startswith("gemma2") else {}
    model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # the library's own
        config, dtype=torch.float32, **attention
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms, biases and sinks start as constants, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()
