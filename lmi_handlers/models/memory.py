"""Estimates a model's memory from its files and options."""

from __future__ import annotations

import os
from pathlib import Path

from backends.paged.memory import free_memory
from backends.selection import find_gpu
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.sizes import parse_bytes
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.model_files.needed import ALL_WEIGHTS, weight_bytes


def needed_memory(properties: ServingProperties, engine: EngineSettings) -> int:
    """Return the bytes that the engines and the shadow take: their weights, and the KV caches that options ask for.

    Weights that are not on this machine yet, and the cache that an engine chooses itself, are left out.
    """
    cache = properties.kv_cache_memory_bytes
    code = engine.custom_code
    copies = len(engine.replicas) if code is None else code.processes
    has_own_code = code is not None and code.options is None
    shadow = 0 if engine.shadow is None else needed_memory(engine.shadow.properties, engine.shadow)
    return shadow + copies * (
        _weights(properties, of_any_format=has_own_code)
        + (0 if cache is None else parse_bytes(cache, "option.kv_cache_memory_bytes"))
    )


def _weights(properties: ServingProperties, *, of_any_format: bool) -> int:
    """Return the bytes of a model's weights. Its own code may load any of them. Engines and tasks read one format."""
    path = Path(properties.model_dir or ".")
    if properties.model_id is not None:
        path = path / Path(properties.model_id).expanduser()
    if not path.exists():
        return 0
    if path.is_file() or not of_any_format:
        return weight_bytes(path)
    return sum(file.stat().st_size for pattern in ALL_WEIGHTS for file in path.glob(pattern) if file.is_file())


def free_for(backend: BackendDeclaration) -> int | None:
    """Return the bytes of memory that are free for an engine, or None if it uses a GPU."""
    on_cpu = backend.cpu_only or find_gpu(os.environ, Path("/dev")) is None
    return free_memory() if on_cpu else None
