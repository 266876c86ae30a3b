"""LoRA adapters: the engine's configuration at startup and the parameter of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.lora_helper import LoraConfig

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
    "gate_up_proj": "mlp_gate_up",
    "w1": "moe_h_to_4h",
    "w2": "moe_4h_to_h",
    "w3": "moe_gate",
    "gate": "moe_router",
}
"""Layer name in an adapter's `target_modules` -> TensorRT-LLM's name."""


def lora_config(properties: ServingProperties, adapters: Mapping[str, Path]) -> LoraConfig:
    """Return the limits and the layers that `adapters` (name -> folder) change. Raises `ConfigError`.

    The engine itself can read the layers from one folder, but not from several. If it is told no layers, it reserves
    memory for all of them.
    """
    limits = {name: getattr(properties, name) for name in ("max_lora_rank", "max_loras", "max_cpu_loras")}
    return LoraConfig(
        lora_target_modules=_target_modules(adapters),
        **{name: limit for name, limit in limits.items() if limit is not None},
    )


def lora_requests(adapters: Mapping[str, Path]) -> dict[str, LoRARequest]:
    """Return name -> the engine's parameter for a request. The engine identifies adapters by number."""
    return {
        name: LoRARequest(lora_name=name, lora_int_id=number, lora_path=str(path))
        for number, (name, path) in enumerate(adapters.items(), 1)
    }


def _target_modules(adapters: Mapping[str, Path]) -> list[str]:
    """Return the layers that the adapters change.

    The list is empty, which means all layers, if an adapter has a pattern instead of a list or an unknown layer.
    """
    layers: set[str] = set()
    for name, path in adapters.items():
        try:
            config: dict[str, Any] = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"option.enable_lora: adapter {name!r} has no readable config: {error}") from error
        targets = config.get("target_modules")
        if not isinstance(targets, list):
            return []
        layers.update(targets)
    return sorted(_MODULES[layer] for layer in layers) if layers <= _MODULES.keys() else []
