"""Chooses the backend for a serving.properties and says why."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from backends import declaration, registry
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.replicas import VISIBLE, visible_gpus
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import GgufHeader, read_gguf_header
from lmi_handlers.core.install import install_command

_GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of the architecture names that LMI serves with its faster engines."""

FALLBACK = "transformers"
"""The backend that serves most models on any device."""

_DEFAULTS = ServingProperties()

Build = Literal["gpu", "cpu"]
"""The hardware that an installed engine is built for."""


class Selection(msgspec.Struct, frozen=True):
    """The chosen backend's name and a sentence for the log."""

    name: str
    reason: str


def select_backend(
    properties: ServingProperties,
    gguf_file: Path | None = None,
    config_file: Path | None = None,
    *,
    asked_by: str = "serving.properties",
) -> Selection:
    """Use `option.rolling_batch` or `option.backend`. With `auto`, choose by what is installed on this machine.

    `gguf_file` is the model, if it is a GGUF file. `config_file` is its config.json, if it has one here. `asked_by`
    is the source of the options. Raises `ConfigError` if the backend does not exist. Imports no engine, so any process may
    call it.
    """
    known = registry()
    name = known.requested(properties)
    if properties.pools:
        if name != "auto" and declaration(name).pooling:
            return Selection(declaration(name).name, f"{asked_by} asks for it")
        does = "embed" if properties.embeds else "score"
        reason = (
            f"option.task={properties.task}" if name == "auto" else f"{declaration(name).name} does not {does} texts"
        )
        return Selection(FALLBACK, reason)
    if name != "auto":
        return Selection(declaration(name).name, f"{asked_by} asks for it")
    candidates = sorted((item for item in known.backends.values() if item.priority), key=lambda item: -item.priority)
    return choose_backend(
        candidates,
        builds={item.name: installed_build(item) for item in (*candidates, declaration(FALLBACK))},
        gpu=find_gpu(os.environ, Path("/dev")),
        architectures=_architectures(config_file),
        gguf=_gguf_header(gguf_file),
        properties=properties,
    )


def needs_weights(properties: ServingProperties) -> bool:
    """Tell whether the engine loads the model's weights. `auto` chooses no other.

    Raises `ConfigError` if the backend does not exist.
    """
    name = registry().requested(properties)
    return name == "auto" or properties.pools or declaration(name).needs_weights


def choose_backend(
    candidates: Sequence[BackendDeclaration],
    *,
    builds: Mapping[str, Build | None],
    gpu: str | None,
    architectures: tuple[str, ...],
    gguf: GgufHeader | None = None,
    properties: ServingProperties = _DEFAULTS,
) -> Selection:
    """Resolve `auto`: the first candidate that is installed, has its GPU and can serve the model; else transformers.

    `builds` has None for an engine that is not installed. `gpu` is the vendor, or None without a GPU. `architectures`
    come from the model's config.json. They are empty if not known yet. `gguf` is None for a model of another format.
    """
    if architectures and not any(name.endswith(_GENERATING) for name in architectures):
        return Selection(FALLBACK, f"the faster engines do not generate text with a {architectures[0]}")
    reasons = []
    for candidate in candidates:
        build = builds[candidate.name]
        if build is None:
            reasons.append(f"{candidate.name} is not installed")
        elif (reason := candidate.why_not(gguf, architectures)) is not None:
            reasons.append(f"{candidate.name} {reason}")
        elif properties.enable_lora and "adapters" in candidate.unsupported:
            reasons.append(f"{candidate.name} does not support adapters (option.enable_lora)")
        elif (name := candidate.wrong_choice(properties)) is not None:
            reasons.append(f"{candidate.name} does not support option.{name}={getattr(properties, name)}")
        elif candidate.cpu_only and gpu is not None and builds.get(FALLBACK) == "gpu":
            reasons.append(f"{candidate.name} does not use the {gpu} GPU")
        elif not candidate.gpus:
            return Selection(candidate.name, f"{candidate.name} is installed{_what_it_reads(candidate, gguf)}")
        elif build == "gpu" and gpu in candidate.gpus:
            return Selection(candidate.name, f"{candidate.name} is installed and there is an {gpu} GPU")
        else:
            reasons.append(f"{candidate.name} {_why_not(candidate, build, gpu)}")
    return Selection(FALLBACK, "; ".join(reasons))


def check_format(
    backend: BackendDeclaration, gguf_file: Path | None, properties: ServingProperties = _DEFAULTS
) -> None:
    """Raise `ConfigError` if the backend only reads certain GGUF files and the model is not one of them.

    The same for weights that would be quantised twice, or not at all for an `option.dtype` that needs it.
    """
    if backend.reads_gguf is None:
        return
    header = None if gguf_file is None else read_gguf_header(gguf_file)
    wanted = header is not None or not backend.architectures
    if wanted and (reason := backend.reads_gguf.why_not(header)):
        raise ConfigError(f"option.model_id: {gguf_file or 'the model'} cannot be served: {backend.name} {reason}")
    types = () if header is None else sorted(header.quantised_types)
    if types and properties.quantize and backend.wrong_choice(properties) is None:  # else that is the mistake
        raise ConfigError(
            f"option.quantize={properties.quantize}: {gguf_file} is quantised already ({', '.join(types)})"
        )
    if properties.dtype == "int8" and not types and not properties.quantize:
        raise ConfigError("option.dtype: int8 computes with quantised weights: set option.quantize=int8, too")


def _what_it_reads(candidate: BackendDeclaration, gguf: GgufHeader | None) -> str:
    if candidate.reads_gguf is not None and gguf is not None:
        return " and reads this GGUF file"
    return " and serves this architecture" if candidate.architectures else ""


def _why_not(candidate: BackendDeclaration, build: Build, gpu: str | None) -> str:
    if build == "cpu":
        word = (*candidate.rolling_batch, candidate.name)[0]
        return f"is installed as a CPU build, which is only used with option.rolling_batch={word}"
    found = "no GPU" if gpu is None else f"only an {gpu} GPU"
    return f"is installed but needs an {' or '.join(candidate.gpus)} GPU, and there is {found}"


def check_installed(backend: BackendDeclaration, properties: ServingProperties) -> None:
    """Raise `ConfigError` if a library that the backend imports is not installed. Imports nothing itself."""
    for library in backend.requires:
        if importlib.util.find_spec(library) is None:
            hint = f"; {install_command(backend.install)}" if backend.install else ""
            raise ConfigError(f"backend {backend.name} is not installed: no module {library}{hint}")
    for setting, library in backend.requires_with.items():
        name, _, value = setting.partition("=")
        if getattr(properties, name) == value and importlib.util.find_spec(library) is None:
            raise ConfigError(
                f"option.{setting} needs the module {library} on backend {backend.name}: it is not installed"
            )


def check_gpus(properties: ServingProperties, backend: BackendDeclaration, gpus: int | None) -> None:
    """Raise `ConfigError` if the options need more GPUs than this machine has. `gpus` is None if that is not known."""
    degree = properties.tensor_parallel_degree
    if gpus is None or degree == "max" or "tensor_parallel_degree" not in backend.reads:
        return
    if backend.is_remote(properties):  # a cluster's GPUs count
        return
    if installed_build(backend) != "gpu":
        return
    needed = degree * properties.pipeline_parallel_degree
    if needed > max(1, gpus):  # without any GPU, the engine itself reports the problem
        raise ConfigError(
            f"option.tensor_parallel_degree={degree} times option.pipeline_parallel_degree="
            f"{properties.pipeline_parallel_degree} needs {needed} GPUs, but there {'is' if gpus == 1 else 'are'} {gpus}"
        )


def count_gpus(environ: Mapping[str, str], devices: Path) -> int | None:
    """Count the NVIDIA GPUs that an engine may use, by the files in `devices`. Return None if these do not show it."""
    if (devices / "dxg").exists() or (devices / "kfd").exists():  # one device file stands for all GPUs
        return None
    present = len(list(devices.glob("nvidia[0-9]*")))
    return len(visible_gpus(environ.get(VISIBLE), present)) if present else 0


def find_gpu(environ: Mapping[str, str], devices: Path) -> str | None:
    """Return "NVIDIA" or "AMD" by the device files in `devices`, as GPU libraries take seconds to import."""
    hidden = VISIBLE in environ and not visible_gpus(environ[VISIBLE], 0)
    if not hidden and (any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()):
        return "NVIDIA"
    return "AMD" if (devices / "kfd").exists() else None


def installed_build(backend: BackendDeclaration) -> Build | None:
    """Return what the first library of the backend is built for, or None if it is not installed. Imports nothing."""
    if not backend.requires:
        return "gpu"
    library = backend.requires[0]
    if importlib.util.find_spec(library) is None:
        return None
    for distribution in (library, f"{library}-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return "cpu" if "cpu" in distribution + importlib.metadata.version(distribution) else "gpu"
    return "gpu"


def _gguf_header(gguf_file: Path | None) -> GgufHeader | None:
    """Return the header of the file, or None if it cannot be read; loading reports why."""
    with contextlib.suppress(ConfigError):
        return None if gguf_file is None else read_gguf_header(gguf_file)
    return None


def _architectures(config_file: Path | None) -> tuple[str, ...]:
    """Return the architectures in config.json, or none if it cannot be read; loading reports why."""
    if config_file is None:
        return ()
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(map(str, config.get("architectures") or ())) if isinstance(config, dict) else ()
