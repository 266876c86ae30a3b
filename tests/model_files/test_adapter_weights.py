"""Adapters whose weights contradict their configuration, or are not finite, are refused for every engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import raises, says
from safetensors.torch import save_file

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.adapter_weights import check_adapter
from lmi_handlers.model_files.complete import check_complete

LAYER = "model.layers.0.self_attn.q_proj"
Tensors = dict[str, torch.Tensor]


def pair(rank: int = 4, layer: str = LAYER, dtype: torch.dtype = torch.float32) -> Tensors:
    """As peft names them. A layer has 6 inputs and 8 outputs."""
    prefix = f"base_model.model.{layer}.lora_"
    shapes = {"A": (rank, 6), "B": (8, rank)}
    return {f"{prefix}{matrix}.weight": torch.ones(shape, dtype=dtype) for matrix, shape in shapes.items()}


def with_value(tensors: Tensors, value: float) -> Tensors:
    next(reversed(tensors.values()))[-1, -1] = value
    return tensors


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4} | config))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("config", "tensors", "cause"),
    [
        (
            {},
            pair(8),
            f"lora_A lora_B {LAYER} 8 6 adapter_config.json 4",
        ),
        ({"rank_pattern": {"v_proj": 2}}, pair(8), f"lora_A lora_B {LAYER} 8 6"),
        (
            {},
            pair() | {f"base_model.model.{LAYER}.lora_B.weight": torch.ones(8, 2)},
            f"lora_A lora_B {LAYER} 4 6 8 2",
        ),
        (
            {"target_modules": ["k_proj", "proj"]},
            pair(),
            f"{LAYER} target_modules adapter_config.json",
        ),
        *(
            ({}, with_value(pair(dtype=dtype), value), f"{LAYER}.lora_B.weight not finite numbers")
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
            for value in (math.nan, -math.inf)
        ),
        ({"r": "four"}, pair(), "adapter_config.json int null str $.r"),
    ],
)
def test_contradictions(tmp_path: Path, config: dict[str, Any], tensors: Tensors, cause: str) -> None:
    folder = write(tmp_path, config, tensors)
    check_complete(folder)
    with pytest.raises(ConfigError) as failure:
        check_adapter(folder, name="'mine'")
    message = str(failure.value)
    assert message.startswith("'mine' cannot be served: ")
    assert says(message, cause)


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"target_modules": ["q_proj"]}, pair()),
        ({"target_modules": [LAYER]}, pair()),
        ({"target_modules": ["self_attn.q_proj"]}, pair()),
        ({"target_modules": ".*q_proj"}, pair()),
        ({"target_modules": None, "r": None}, pair(8)),
        ({"rank_pattern": {"q_proj": 8}}, pair(8)),
        ({"modules_to_save": ["lm_head"]}, pair() | {"base_model.model.lm_head.weight": torch.ones(3, 3)}),
        ({}, with_value(pair(dtype=torch.bfloat16), torch.finfo(torch.bfloat16).max)),
        ({}, {"base_model.model.counts": torch.full((3,), -1)}),
        ({}, {}),
    ],
)
def test_adapters_that_fit(tmp_path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    check_adapter(write(tmp_path, config, tensors), name="mine")


def test_many_layers_and_many_targets(tmp_path: Path) -> None:
    """Each layer compared with each target would take hours, in an engine that serves."""
    targets = [f"x{number}" for number in range(40_000)]
    header = {
        f"m.{number}.y.lora_{matrix}.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 0]}
        for number in range(15_000)
        for matrix in "AB"
    }
    config = {"target_modules": [*targets, "y"], "r": 1, "rank_pattern": dict.fromkeys(targets, 2)}
    text = json.dumps(header).encode()
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    check_adapter(tmp_path, name="mine")


def test_tensors_that_overlap(tmp_path: Path) -> None:
    """A small file could have many tensors of its whole size, each of which would be read."""
    write(tmp_path, {}, pair())
    header = {f"x{number}": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]} for number in range(100)}
    text = json.dumps(header).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(256))
    with raises(ConfigError, "safetensors tensors overlap"):
        check_complete(tmp_path)
