"""Finds the LoRA adapters of a model. As in LMI, each is a folder in `adapters/`."""

from __future__ import annotations

from pathlib import Path

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

CONFIG_NAME = "adapter_config.json"


def find_adapters(properties: ServingProperties, model_path: Path | None) -> dict[str, Path]:
    """Return name -> folder of all adapters in `adapters/`, in the model's folder and beside serving.properties.

    Empty if `option.enable_lora` is off. Raises `ConfigError` if a folder does not contain an adapter.
    """
    if not properties.enable_lora:
        return {}
    places = [model_path, None if properties.model_dir is None else Path(properties.model_dir)]
    folders = [
        folder
        for place in places
        if place is not None
        for folder in sorted((place / "adapters").glob("*"))
        if folder.is_dir() and not folder.name.startswith(".")
    ]
    for folder in folders:
        if not (folder / CONFIG_NAME).is_file():
            raise ConfigError(f"option.enable_lora: {folder} is not an adapter: it has no {CONFIG_NAME}")
    return {folder.name: folder for folder in folders}
