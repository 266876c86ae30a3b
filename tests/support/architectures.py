"""Tiny models of many architectures with random weights, in float32: what decides how a model is computed, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models

VOCAB_SIZE = 256
MAX_LEN = 128
WINDOW = 20

TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
MOE: dict[str, Any] = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
MLA: dict[str, Any] = {
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": None,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
GPT2: dict[str, Any] = {
    "n_embd": 128,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": MAX_LEN,
    "n_ctx": MAX_LEN,
    "n_inner": 96,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama_llama3": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama_yarn": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": ("Qwen2Config", {}),
    "qwen2_swa": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {}),
    "qwen2_moe": ("Qwen2MoeConfig", dict(MOE, shared_expert_intermediate_size=64)),
    "qwen3_moe": ("Qwen3MoeConfig", MOE),
    "qwen3_next": (
        "Qwen3NextConfig",
        dict(
            MOE,
            num_hidden_layers=4,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            shared_expert_intermediate_size=48,
        ),
    ),
    "gemma": ("GemmaConfig", {}),
    "gemma2": (
        "Gemma2Config",
        {
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 32,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 2,
            "intermediate_size": 96,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "hidden_size_per_layer_input": 16,
            "laurel_rank": 8,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 5,
            "layer_types": [
                "sliding_attention",
                "full_attention",
                "sliding_attention",
                "sliding_attention",
                "full_attention",
            ],
        },
    ),
    "gemma4": (
        "Gemma4TextConfig",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
        },
    ),
    "vaultgemma": ("VaultGemmaConfig", {"sliding_window": WINDOW, "query_pre_attn_scalar": 32}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral_sw": ("MistralConfig", {"sliding_window": WINDOW}),
    "ministral": ("MinistralConfig", {"sliding_window": WINDOW}),
    "ministral3": (
        "Ministral3Config",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "llama_4_scaling_beta": 0.1,
            }
        },
    ),
    "mixtral": ("MixtralConfig", dict(MOE)),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", {}),
    "phi3_sw": ("Phi3Config", {"sliding_window": WINDOW}),
    "phi3_longrope": (
        "Phi3Config",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0 + 0.01 * i for i in range(16)],
                "long_factor": [1.5 + 0.3 * i for i in range(16)],
            },
        },
    ),
    "phimoe": ("PhimoeConfig", dict(MOE)),
    "gpt2": ("GPT2Config", GPT2),
    "gpt_bigcode": ("GPTBigCodeConfig", GPT2),
    "gptj": ("GPTJConfig", dict(GPT2, rotary_dim=16)),
    "codegen": ("CodeGenConfig", dict(GPT2, rotary_dim=16)),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "num_hidden_layers": 2,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
        },
    ),
    "opt": ("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": 128}),
    "bloom": ("BloomConfig", {"n_layer": 3, "n_head": 4}),
    "falcon": ("FalconConfig", {"head_dim": None, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_alibi": (
        "FalconConfig",
        {"head_dim": None, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "mpt": ("MptConfig", {"d_model": 128, "n_heads": 4, "n_layers": 3, "max_seq_len": MAX_LEN}),
    "xglm": ("XGLMConfig", {"d_model": 128, "ffn_dim": 96, "num_layers": 3, "attention_heads": 4}),
    "stablelm": ("StableLmConfig", {}),
    "persimmon": ("PersimmonConfig", {}),
    "deepseek_v2": ("DeepseekV2Config", MLA),
    "deepseek_v3": ("DeepseekV3Config", MLA),
    "deepseek_v32": ("DeepseekV32Config", dict(MLA, index_topk=24, index_n_heads=2, index_head_dim=32)),
    "glm_moe_dsa": ("GlmMoeDsaConfig", dict(MLA, index_topk=24, index_n_heads=2, index_head_dim=32)),
    "granite": (
        "GraniteConfig",
        {"embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    ),
    "granitemoe": ("GraniteMoeConfig", MOE),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        dict(
            MOE,
            layer_types=["mamba", "attention", "mamba"],
            mamba_n_heads=8,
            mamba_d_head=32,
            mamba_n_groups=1,
            mamba_d_state=16,
            shared_intermediate_size=96,
        ),
    ),
    "olmo": ("OlmoConfig", {}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": (
        "Olmo3Config",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "olmoe": ("OlmoeConfig", MOE),
    "cohere": ("CohereConfig", {}),
    "cohere2": (
        "Cohere2Config",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "starcoder2": ("Starcoder2Config", {}),
    "starcoder2_sw": ("Starcoder2Config", {"sliding_window": WINDOW}),
    "mamba": ("MambaConfig", {"state_size": 8}),
    "mamba2": ("Mamba2Config", {"state_size": 16, "num_heads": 8, "head_dim": 32, "n_groups": 1}),
    "falcon_mamba": ("FalconMambaConfig", {"state_size": 8}),
    "rwkv": ("RwkvConfig", {"context_length": MAX_LEN, "attention_hidden_size": 128}),
    "jamba": (
        "JambaConfig",
        dict(
            MOE,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8,
            mamba_dt_rank=8,
            use_mamba_kernels=False,
        ),
    ),
    "bamba": ("BambaConfig", {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16}),
    "zamba2": (
        "Zamba2Config",
        {
            "num_hidden_layers": 4,
            "n_mamba_heads": 8,
            "mamba_d_state": 16,
            "mamba_headdim": 32,
            "num_mem_blocks": 1,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        },
    ),
    "falcon_h1": ("FalconH1Config", {"mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 96}),
    "gpt_oss": ("GptOssConfig", dict(MOE, sliding_window=WINDOW, num_hidden_layers=4)),
    "exaone4": (
        "Exaone4Config",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
            "sliding_window_pattern": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "glm": ("GlmConfig", {}),
    "glm4": ("Glm4Config", {}),
    "glm4_moe": (
        "Glm4MoeConfig",
        dict(MOE, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1),
    ),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
    "llama4": (
        "Llama4TextConfig",
        {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 96,
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
            "layer_types": ["chunked_attention", "chunked_attention", "chunked_attention", "full_attention"],
            "no_rope_layers": [1, 1, 1, 0],
            "attn_temperature_tuning": True,
            "floor_scale": 32,
            "attn_scale": 0.3,
        },
    ),
    "hunyuan": ("HunYuanDenseV1Config", {}),
    "hunyuan_alpha": (
        "HunYuanDenseV1Config",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "alpha": 1000.0,
                "factor": 1.0,
                "beta_fast": 32,
                "beta_slow": 1,
            }
        },
    ),
    "hunyuan_moe": ("HunYuanMoEV1Config", dict(MOE, moe_topk=[2, 2, 2])),
    "ernie4_5": ("Ernie4_5Config", {}),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 48, "moe_num_shared_experts": 1},
    ),
    "seed_oss": ("SeedOssConfig", {}),
    "apertus": ("ApertusConfig", {}),
    "arcee": ("ArceeConfig", {}),
    "bitnet": ("BitNetConfig", {}),
    "nemotron": ("NemotronConfig", {}),
    "minimax": ("MiniMaxConfig", dict(MOE, layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "minimax_m2": ("MiniMaxM2Config", MOE),
    "dbrx": (
        "DbrxConfig",
        {
            "d_model": 128,
            "n_heads": 4,
            "n_layers": 3,
            "max_seq_len": MAX_LEN,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 128},
        },
    ),
    "doge": ("DogeConfig", {"keep_window_size": 24, "num_experts": 4}),
    "diffllama": ("DiffLlamaConfig", {}),
    "helium": ("HeliumConfig", {}),
    "jetmoe": ("JetMoeConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 32}),
    "dots1": (
        "Dots1Config",
        dict(MOE, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1),
    ),
    "nanochat": ("NanoChatConfig", {}),
    "modernbert_decoder": (
        "ModernBertDecoderConfig",
        {"local_attention": WINDOW, "num_hidden_layers": 3, "global_attn_every_n_layers": 3},
    ),
    "hrm_text": ("HrmTextConfig", {}),
    "jais2": ("Jais2Config", {}),
    "afmoe": ("AfmoeConfig", dict(MOE, sliding_window=WINDOW, num_dense_layers=1, num_shared_experts=1)),
    "minicpm3": ("MiniCPM3Config", dict(MLA)),
    "mimo_v2_flash": ("MiMoV2FlashConfig", dict(MOE, sliding_window=WINDOW)),
}

VLLM = ("gemma3", "llama_llama3", "mixtral")
"""Those of which answers of vLLM are compared."""

EAGER = {"gemma2", "vaultgemma"}
"""The library's default attention would ignore their soft cap."""


def make_architecture(name: str) -> Any:
    """Build a model. Its weights are the same on every call, and such that attention decides the next token."""
    config_class, options = ARCHITECTURES[name]
    fields = {key: value for key, value in (TINY | options).items() if value is not None or key == "sliding_window"}
    config = getattr(transformers, config_class)(**fields)
    torch.manual_seed(5)
    attention = {"attn_implementation": "eager"} if name in EAGER else {}
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **attention)  # type: ignore[no-untyped-call]  # the library's own
    with torch.no_grad():
        for key, weights in model.named_parameters():
            # Norms, biases and sinks start as constants, which would hide mistakes. A recurrence must stay stable.
            if weights.dim() == 1 and not any(part in key for part in ("A_log", "dt_bias", "time_")):
                weights.add_(torch.randn_like(weights) * 0.1)
    model.train(False)
    return model


def save_architecture(name: str, folder: Path) -> Any:
    """Write the model to `folder` with some tokenizer, because vLLM wants one. Returns the model."""
    model = make_architecture(name)
    model.save_pretrained(folder)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return model
