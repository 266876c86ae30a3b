"""LoRA's settings."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.contract import check_types, dataclass_of

TARGET_MODULES = (
    *("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_dense"),
    *("mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate", "mlp_gate_up"),
    *("moe_h_to_4h", "moe_4h_to_h", "moe_gate", "moe_router"),
)
"""The layers that an adapter can change, as in the library's source around version 1.2."""


def _post_init(self: Any) -> None:
    check_types(self)
    unknown = set(self.lora_target_modules) - set(TARGET_MODULES)
    if unknown:
        raise ValueError(f"unknown LoRA modules {sorted(unknown)}")


LoraConfig = dataclass_of("LoraConfig", __post_init__=_post_init)
