"""How much memory a model takes, as far as its files and options say."""

from __future__ import annotations

import os
from pathlib import Path

from backends.paged.memory import free_memory
from backends.selection import find_gpu
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.sizes import parse_bytes
from lmi_handlers.engine.settings import EngineSettings

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".h5", ".ckpt", ".msgpack", ".engine")


def needed_memory(properties: ServingProperties, engine: EngineSettings) -> int:
    """Return the bytes that the engines take: their weights, and the KV caches that options ask for.

    Weights that are not on this machine yet, and the cache that an engine chooses itself, are left out.
    """
    cache = properties.kv_cache_memory_bytes
    copies = engine.custom_code.processes if engine.custom_code is not None else len(engine.replicas)
    return copies * (
        _weights(properties) + (0 if cache is None else parse_bytes(cache, "option.kv_cache_memory_bytes"))
    )


def _weights(properties: ServingProperties) -> int:
    path = Path(properties.model_dir or ".")
    if properties.model_id is not None:
        path = path / Path(properties.model_id).expanduser()
    if path.is_file():
        return path.stat().st_size
    files = path.iterdir() if path.is_dir() else ()
    return sum(file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file())


def free_for(backend: BackendDeclaration) -> int | None:
    """Return the bytes of memory that are free for an engine, or None if it uses a GPU."""
    on_cpu = backend.cpu_only or find_gpu(os.environ, Path("/dev")) is None
    return free_memory() if on_cpu else None
