"""Checks that the weights of a LoRA adapter match its adapter_config.json, and are finite: for every engine.

Engines read the rank and the layers from one of the two files and trust it. One infinite weight makes every answer with the
adapter worthless, and may spoil those of requests in the same batch.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Container, Iterator, Mapping, Set
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.complete import SafetensorsEntry, check_adapter_complete, read_safetensors_header

CONFIG_NAME = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_MAX_NESTED = 32
"""Names before a layer's own that may belong to a target, as in `model.layers.0.self_attn.q_proj`."""

_MATRIX = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?P<matrix>[AB])(?:\.[^.]+)?\.weight")
_CHUNK = 1 << 22
"""Bytes that are checked at a time."""

_EXPONENTS = {
    "F64": ("u8", 0x7FF << 52),
    "F32": ("u4", 0xFF << 23),
    "F16": ("u2", 0x1F << 10),
    "BF16": ("u2", 0xFF << 7),
}
"""Type -> NumPy's unsigned integer of its size, and the bits that are all set in infinities and NaN (IEEE 754)."""


class _Config(msgspec.Struct, frozen=True):
    """The shapes of an adapter, as peft writes them. Missing entries are not checked."""

    r: int | None = None
    rank_pattern: dict[str, int] | None = None
    target_modules: list[str] | str | None = None
    target_parameters: list[str] | None = None


def check_adapter(folder: Path, *, name: str) -> None:
    """Raise `ConfigError` if the files in `folder` are not whole, or the weights contradict the configuration.

    Pickled weights are not read. `name` begins the message.
    """
    check_adapter_complete(folder)
    file = folder / _WEIGHTS
    if not file.is_file():
        return
    start, header = read_safetensors_header(file)
    cause = _contradiction(_read_config(folder / CONFIG_NAME, name), header)
    if cause is None and (key := _first_not_finite(file, start, header)) is not None:
        cause = f"{key:.120} has weights that are not finite numbers"
    if cause is not None:
        raise ConfigError(f"{name} cannot be served: {cause}")


def _read_config(file: Path, name: str) -> _Config:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Config)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} cannot be served: its {CONFIG_NAME} is not valid: {error}") from error


def _contradiction(config: _Config, header: Mapping[str, SafetensorsEntry]) -> str | None:
    """Return what the weights' names and shapes contradict, or None."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, entry in header.items():
        if (match := _MATRIX.fullmatch(key)) is not None:
            shapes.setdefault(match["layer"], {})[match["matrix"]] = entry.shape
    targets, ranks = _targets(config), _ranks(config)
    for layer, matrices in shapes.items():
        if targets is not None and not _is_target(layer, targets):
            return f"it has weights for {layer:.120}, which is not among the target_modules of its {CONFIG_NAME}"
        if len(matrices) == 2 and (cause := _wrong_rank(config.r, ranks, matrices["A"], matrices["B"])):
            return f"lora_A and lora_B of {layer:.120} {cause}"
    return None


def _targets(config: _Config) -> Container[str] | None:
    """Return the names of the layers that have weights, or None for a pattern, which may take any time, or all layers."""
    targets = config.target_modules
    return set(targets) if isinstance(targets, list) and targets and not config.target_parameters else None


def _is_target(layer: str, targets: Container[str]) -> bool:
    """Tell whether a target is the name of a layer or its end. Both the layers and the targets may be many."""
    parts = layer.rsplit(".", _MAX_NESTED)
    return any(".".join(parts[start:]) in targets for start in range(len(parts)))


def _ranks(config: _Config) -> Set[int]:
    """Return the ranks that layers may have. Empty if the configuration does not say."""
    return set() if config.r is None else {config.r, *(config.rank_pattern or {}).values()}


def _wrong_rank(r: int | None, ranks: Set[int], down: tuple[int, ...], up: tuple[int, ...]) -> str:
    """Return what is wrong with the shapes of lora_A, `[rank, inputs]`, and lora_B, `[outputs, rank]`, or ""."""
    text = " and ".join(" x ".join(map(str, shape)) for shape in (down, up))
    if len(down) < 2 or len(up) < 2 or down[0] != up[1] or 0 in (*down, *up):
        return f"have the shapes {text}, which do not belong together"
    if ranks and down[0] not in ranks:
        return f"have the shapes {text}, but its {CONFIG_NAME} says that r is {r}"
    return ""


def _first_not_finite(file: Path, start: int, header: Mapping[str, SafetensorsEntry]) -> str | None:
    """Return the name of the first tensor with a value that is infinite or NaN. `start` is where the header ends."""
    try:
        import numpy as np  # every engine with adapters needs it, and nothing else here does
    except ImportError:
        return None
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        for key, first, stop, kind, exponent in _floats(start, header):
            for begin in range(first, stop, _CHUNK):
                bits = np.frombuffer(memory[begin : min(begin + _CHUNK, stop)], dtype=f"<{kind}")
                if ((bits & exponent) == exponent).any():
                    return key
    return None


def _floats(start: int, header: Mapping[str, SafetensorsEntry]) -> Iterator[tuple[str, int, int, str, int]]:
    """Yield each tensor of floating-point numbers: its name, its bytes in the file, and its row of `_EXPONENTS`."""
    for key, entry in header.items():
        if entry.data_offsets is not None and entry.dtype in _EXPONENTS:
            first, stop = entry.data_offsets
            kind, exponent = _EXPONENTS[entry.dtype]
            size = int(kind[1:])
            yield key, start + first, start + first + max(stop - first, 0) // size * size, kind, exponent
