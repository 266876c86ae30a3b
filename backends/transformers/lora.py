"""Reads LoRA adapters as the peft library saves them, and checks that they fit the model.

Hand-written although peft has a reader: that one takes pickled files, asks the Hugging Face hub for missing ones, and
matches regular expressions from the file. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from lmi_handlers.core.errors import InvalidRequest

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_MAX_CONFIG_BYTES = 1 << 20

_WEIGHT = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?P<matrix>[AB])\.weight")
_PLAIN_NAME = re.compile(r"[\w.]+")
_KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Initialisations that do not change the model's own weights. `init_lora_weights` has the value that was trained with."""

Shapes = Mapping[str, tuple[int, int]]
"""Layer name -> its inputs and outputs."""


class _Config(msgspec.Struct, frozen=True):
    """The fields of adapter_config.json that decide what is computed, with peft's defaults."""

    peft_type: str
    lora_alpha: float = 8
    use_rslora: bool = False
    use_dora: bool = False
    use_qalora: bool = False
    use_bdlora: Any = None
    alora_invocation_tokens: Any = None
    layer_replication: Any = None
    arrow_config: Any = None
    trainable_token_indices: Any = None
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    alpha_pattern: dict[str, float] | None = None


class LoraWeights(NamedTuple):
    """An adapter's addition to a layer's output: `x @ down @ up`. `down` is `[inputs, rank]`, `up` `[rank, outputs]`.

    The scaling is part of `up`.
    """

    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True, eq=False, slots=True)
class LoraAdapter:
    """An adapter in main memory: the layers that it changes, by name."""

    name: str
    layers: Mapping[str, LoraWeights]


def read_adapter(name: str, folder: Path, shapes: Shapes, *, max_rank: int, dtype: torch.dtype) -> LoraAdapter:
    """Read the adapter in `folder` and convert its weights to `dtype`.

    `shapes` are the layers that an adapter may change. Raises `InvalidRequest` with one sentence that names the adapter
    if it is not for this model, of too high a rank or of a kind that is not supported. Shapes are checked before weights
    are read.
    """
    try:
        config = _read_config(folder / CONFIG_FILE)
        with safe_open(folder / WEIGHTS_FILE, "pt") as file:
            ranks = _check_shapes({key: file.get_slice(key).get_shape() for key in file.keys()}, shapes, max_rank)  # noqa: SIM118 (not a dict)
            layers = {}
            for layer, (down, up, rank) in ranks.items():
                scaled = file.get_tensor(up).float() * _scaling(config, layer, rank)
                layers[layer] = LoraWeights(_ready(file.get_tensor(down), dtype), _ready(scaled, dtype))
    except FileNotFoundError as error:
        raise InvalidRequest(f"adapter {name!r} has no {CONFIG_FILE} or no {WEIGHTS_FILE}") from error
    except (OSError, SafetensorError) as error:
        raise InvalidRequest(f"adapter {name!r} cannot be read: {error}") from error
    except ValueError as error:
        raise InvalidRequest(f"adapter {name!r} cannot be served: {error}") from error
    return LoraAdapter(name, layers)


def _read_config(file: Path) -> _Config:
    """Return the configuration. Raises `ValueError` if it is not a plain LoRA adapter's."""
    with file.open("rb") as stream:
        text = stream.read(_MAX_CONFIG_BYTES + 1)
    if len(text) > _MAX_CONFIG_BYTES:
        raise ValueError(f"its {CONFIG_FILE} has more than {_MAX_CONFIG_BYTES} bytes")
    try:
        config = msgspec.json.decode(text, type=_Config)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its {CONFIG_FILE} is not valid: {error}") from error
    if config.peft_type != "LORA":
        raise ValueError(f"its peft_type is {config.peft_type!r:.40}; only LORA is supported")
    unsupported = {
        "use_dora": config.use_dora,
        "use_qalora": config.use_qalora,
        "use_bdlora": config.use_bdlora,
        "alora_invocation_tokens": config.alora_invocation_tokens,
        "layer_replication": config.layer_replication,
        "arrow_config": config.arrow_config,
        "trainable_token_indices": config.trainable_token_indices,
        f"bias={config.bias:.40}": config.bias != "none",
        f"init_lora_weights={config.init_lora_weights!s:.40}": config.init_lora_weights not in (None, *_KEEPS_BASE),
    }
    if found := [field for field, value in unsupported.items() if value]:
        raise ValueError(f"{found[0]} is not supported")
    for pattern in config.alpha_pattern or ():
        if not _PLAIN_NAME.fullmatch(pattern):
            raise ValueError(f"alpha_pattern may only have names of layers, not {pattern!r:.60}")
    return config


def _check_shapes(tensors: Mapping[str, list[int]], shapes: Shapes, max_rank: int) -> dict[str, tuple[str, str, int]]:
    """Return layer -> keys of its two matrices, and its rank. Raises `ValueError` if one does not fit the model."""
    keys: dict[str, dict[str, str]] = {}
    for key in tensors:
        match = _WEIGHT.fullmatch(key)
        if match is None or match["layer"].rpartition(".")[2] == "base_layer":
            raise ValueError(f"it has weights other than lora_A and lora_B of linear layers: {key!r:.120}")
        if match["layer"] not in shapes:
            raise ValueError(f"the model has no linear layer {match['layer']!r:.120} that an adapter may change")
        keys.setdefault(match["layer"], {})[match["matrix"]] = key
    if not keys:
        raise ValueError("it has no weights")
    layers = {}
    for layer, of_layer in keys.items():
        if len(of_layer) < 2:
            raise ValueError(f"{layer} has only one of lora_A and lora_B")
        down, up = (tensors[of_layer[matrix]] for matrix in "AB")
        rank, (inputs, outputs) = down[0] if down else 0, shapes[layer]
        if down != [rank, inputs] or up != [outputs, rank] or rank == 0:
            raise ValueError(
                f"lora_A and lora_B of {layer} have the shapes {_text(down)} and {_text(up)}, but the layer has "
                f"{inputs} inputs and {outputs} outputs; it was trained for another model"
            )
        if rank > max_rank:
            raise ValueError(f"its rank is {rank}, but option.max_lora_rank is {max_rank}")
        layers[layer] = of_layer["A"], of_layer["B"], rank
    return layers


def _scaling(config: _Config, layer: str, rank: int) -> float:
    alpha = config.lora_alpha
    for name, value in (config.alpha_pattern or {}).items():  # the first that matches, as in peft
        if layer == name or layer.endswith(f".{name}"):
            alpha = value
            break
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _ready(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the transposed matrix. Raises `ValueError` if a value is not finite, which would spoil other sequences."""
    converted = matrix.to(dtype)
    if not converted.isfinite().all():
        raise ValueError(f"not all of its weights are finite in {str(dtype).removeprefix('torch.')}")
    return converted.t().contiguous()


def _text(shape: list[int]) -> str:
    return " x ".join(map(str, shape))
