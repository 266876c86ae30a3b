"""LoRA adapters for the small model."""

from __future__ import annotations

import json
from pathlib import Path


def write_adapter(folder: Path, size: float) -> Path:
    """Write a LoRA adapter for the small model's query projections. With `size` 0, it changes nothing."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(30):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        tensors[f"{prefix}A.weight"] = torch.randn(4, 576, generator=generator)
        tensors[f"{prefix}B.weight"] = torch.randn(576, 4, generator=generator) * size
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
