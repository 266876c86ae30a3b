"""Refuses weights in pickle files unless `option.allow_pickle` is set, because loading such a file may run code in it.

transformers and vLLM load them with `weights_only`, which is meant to run no code, but has had holes (CVE-2025-32434).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.complete import check_json

_PICKLED = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth")
_FORMATS = ("npcache", "pt")
"""Values of `option.load_format` with which vLLM loads nothing else."""

_ALLOW = "convert it to safetensors, or set option.allow_pickle=true if you trust it"


def check_weights(folder: Path, properties: ServingProperties) -> None:
    """Raise `ConfigError` if an engine would load pickled weights from the folder of a model or an adapter.

    The weights of embedding models' dense layers, which are in folders of their own, count, too.
    """
    if properties.allow_pickle:
        return
    if (properties.load_format or "").lower() in _FORMATS:
        raise ConfigError(
            f"option.load_format={properties.load_format} loads pickle files: use safetensors, or set "
            "option.allow_pickle=true if you trust them"
        )
    for part in (folder, *sorted(folder.glob("*_Dense"))):
        if (file := _pickled(part)) is not None:
            raise ConfigError(f"{file} is a pickle file, and loading it may run code that it contains: {_ALLOW}")


def check_adapter_weights(folder: Path, properties: ServingProperties) -> None:
    """Raise `ConfigError` if an engine would load pickled weights of an adapter: those without safetensors of its name."""
    if properties.allow_pickle or (folder / "adapter_model.safetensors").is_file():
        return
    found = (file for pattern in _PICKLED for file in sorted(folder.glob(pattern)))
    if (file := next(found, None)) is not None:
        raise ConfigError(f"{file} is a pickle file, and loading it may run code that it contains: {_ALLOW}")


def _pickled(folder: Path) -> Path | None:
    """Return a pickle file that would be loaded.

    vLLM loads one if there are no safetensors, transformers if there are none of the expected name, or if the model's own
    files name one.
    """
    if (named := next(_named(folder), None)) is not None:
        return named
    has_safetensors = any(folder.glob("*.safetensors"))
    expected = (folder / "model.safetensors").is_file() or (
        has_safetensors and (folder / "model.safetensors.index.json").is_file()
    )
    patterns = _PICKLED[:1] if has_safetensors else _PICKLED
    found = (file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file())
    return None if expected else next(found, None)


def _named(folder: Path) -> Iterator[Path]:
    """Yield the files with weights that config.json and the indexes of safetensors name, and that are no safetensors."""
    indexes = set(folder.glob("*.safetensors.index.json"))
    weights = _read(folder / "config.json").get("transformers_weights")
    if isinstance(weights, str) and weights.endswith(".index.json"):
        indexes.add(folder / weights)
    elif isinstance(weights, str) and not weights.endswith(".safetensors"):
        yield folder / weights
    for index in sorted(indexes):
        shards = _read(index).get("weight_map")
        for shard in shards.values() if isinstance(shards, dict) else ():
            if isinstance(shard, str) and not shard.endswith(".safetensors"):
                yield folder / shard


def _read(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if no engine can read it either. Raises `ConfigError`."""
    if not file.is_file():
        return {}
    check_json(file)
    try:
        found = json.loads(file.read_bytes())
    except (OSError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
