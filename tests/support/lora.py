"""LoRA adapters for the small model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any


def write_adapter(folder: Path, size: float, *, layers: int = 30, width: int = 576) -> Path:
    """Write a LoRA adapter for the query projections of the small model, or of one with other numbers.

    With `size` 0, it changes nothing.
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(layers):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        tensors[f"{prefix}A.weight"] = torch.randn(4, width, generator=generator)
        tensors[f"{prefix}B.weight"] = torch.randn(width, 4, generator=generator) * size
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def train_adapter(model: Any, folder: Path, seed: int, **config: Any) -> Path:
    """Train an adapter of a causal model with peft for a few steps, on random tokens, and save it in `folder`.

    Long enough that it changes the model's greedy answers. The model itself stays as it is.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    adapted = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="CAUSAL_LM", **config)).train()
    adapted.requires_grad_(False)
    weights = [weight for name, weight in adapted.named_parameters() if "lora_" in name]
    tokens = torch.randint(3, adapted.get_input_embeddings().num_embeddings, (4, 24))
    optimizer = torch.optim.SGD([weight.requires_grad_() for weight in weights], lr=3.0)
    with torch.enable_grad():
        for _ in range(8):
            optimizer.zero_grad()
            adapted(input_ids=tokens, labels=tokens).loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
    adapted.save_pretrained(str(folder))
    return folder
