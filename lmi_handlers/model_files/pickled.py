"""Refuses weights in pickle files unless `option.allow_pickle` is set, because loading such a file may run code in it.

transformers and vLLM load them with `weights_only`, which is meant to run no code, but has had holes (CVE-2025-32434).
"""

from __future__ import annotations

from pathlib import Path

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError

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

    vLLM loads one if there are no safetensors, transformers if there are none of the expected name.
    """
    expected = any((folder / f"model.safetensors{end}").is_file() for end in ("", ".index.json"))
    patterns = _PICKLED[:1] if any(folder.glob("*.safetensors")) else _PICKLED
    found = (file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file())
    return None if expected else next(found, None)
