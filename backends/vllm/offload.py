"""Keys and values that leave the GPU for the CPU's memory or a disk: `option.lmcache_auto_config` chooses how much.

LMCache keeps them if it is installed, otherwise vLLM itself.
"""

from __future__ import annotations

import fcntl
import importlib.util
import itertools
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from vllm import EngineArgs
from vllm.config import KVTransferConfig, VllmConfig
from vllm.platforms import current_platform

from backends.base import ModelFiles
from backends.paged.memory import free_memory
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.files import own_temporary_folder
from lmi_handlers.model_files.needed import weight_bytes

logger = logging.getLogger(__name__)

AUTO, FILE = "option.lmcache_auto_config", "option.lmcache_config_file"

OPTIONS = ("lmcache_auto_config", "lmcache_config_file")
"""The options that are read here."""

LEAST = 2**30
"""Bytes of memory per engine below which offloading is not worth its cost."""

_LIBRARY = "lmcache"
_CONNECTOR = "LMCacheConnectorV1"
_SERVER_CONNECTOR = "LMCacheMPConnector"
"""Of LMCache as a server of its own."""
_BY_DIGEST = frozenset(
    {
        *("OffloadingConnector", "SimpleCPUOffloadConnector", "MooncakeStoreConnector"),
        *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MoRIIOConnector"),
        "MultiConnector",
    }
)
"""The connectors of vLLM 0.32 that find keys and values by its digests, and those that send them by request.

Others, such as LMCache's and HF3FS's, go by token ids: one tenant would find what another has sent, and a prompt with an
adapter or an image what belongs to another adapter or image.
"""
_BY_SALT = _BY_DIGEST | {_SERVER_CONNECTOR}
"""Those that know the salt, too."""
_BY_MEDIA = _BY_DIGEST | {_CONNECTOR}
"""Those that know images and sounds, too."""
_OTHERS = ""
"""Stands for a connector that is not vLLM's own. Whoever has written it knows what it keeps apart."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  a folder of the system
"""vLLM keeps its part here."""

_CONFLICTS = ("kv_transfer_config", "kv_offloading_size")
_PER_MACHINE = "its workers may run on machines with less memory than this one"


class OffloadSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes for the keys and values of one engine."""

    memory: int
    disk: int = 0


def share(free: int, model_bytes: int, engines: int) -> int:
    """Return what each of `engines` may take of `free` bytes. LMI's rule: twice the model's size, or a fifth, is left."""
    return max(0, free - max(2 * model_bytes, free // 5)) // engines


def check_offloading(backend: BackendDeclaration, properties: ServingProperties, arguments: EngineArgs) -> None:
    """Raise `ConfigError` if vLLM cannot do what the options of this `backend` ask for with these arguments."""
    mixing = next((name for name in _asked_connectors(arguments) if name not in {*_BY_DIGEST, _OTHERS}), None)
    if arguments.enable_lora and mixing is not None:
        raise ConfigError(
            f"option.enable_lora is not supported with {mixing}, which is not known to keep adapters apart "
            "(option.kv_transfer_config, option.kv_offloading_backend)"
        )
    auto, file = _asked(backend, properties)
    if file is not None and not _has_lmcache():
        raise ConfigError(f"{FILE} has value {file!r}: LMCache is not installed (pip install lmcache)")
    if not auto:
        return
    if file is not None:
        raise ConfigError(f"{AUTO} and {FILE} must not both be set")
    for name in _CONFLICTS:
        if getattr(arguments, name) is not None:
            raise ConfigError(f"{AUTO} and option.{name} must not both be set")
    if properties.pools:
        raise ConfigError(f"{AUTO} is only for text generation, not for option.task")
    if arguments.enable_prefix_caching is False:
        raise ConfigError(f"{AUTO} needs option.enable_prefix_caching")
    if arguments.enable_expert_parallel:
        raise ConfigError(f"{AUTO} is not supported with option.enable_expert_parallel, as in LMI")
    if arguments.distributed_executor_backend == "ray":
        raise ConfigError(f"{AUTO} is not supported with option.distributed_executor_backend=ray: {_PER_MACHINE}")
    if not (current_platform.is_cuda_alike() or current_platform.is_xpu()):
        raise ConfigError(
            f"{AUTO} needs a GPU: vLLM offloads nothing from a CPU, whose memory the KV cache is in already"
        )


def configure_offloading(
    backend: BackendDeclaration,
    properties: ServingProperties,
    arguments: EngineArgs,
    model: ModelFiles,
    *,
    shared_memory: Path = SHARED_MEMORY,
) -> None:
    """Set what the options stand for in `arguments` and LMCache's environment, after `check_offloading`.

    vLLM's own offloading only gets what is free in `shared_memory`, too.

    Raises `ConfigError` if there is too little memory.
    """
    auto, file = _asked(backend, properties)
    if file is not None:
        os.environ["LMCACHE_CONFIG_FILE"] = str(Path(properties.model_dir or "", file).absolute())
    if not auto:
        return
    # vLLM's copy of LMCache's connector knows no adapters: it would take one's keys and values for another's.
    uses_lmcache = _has_lmcache() and not arguments.enable_lora
    model_bytes = 0 if model.path is None else weight_bytes(model.path)
    room = OffloadSpace(memory=_memory(model_bytes, model.engines, within=None if uses_lmcache else shared_memory))
    if uses_lmcache:
        folder = own_folder(own_temporary_folder("lmi-lmcache"))
        room = OffloadSpace(memory=room.memory, disk=share(shutil.disk_usage(folder).free, model_bytes, model.engines))
        workers = arguments.tensor_parallel_size * arguments.pipeline_parallel_size
        for name, value in lmcache_variables(room, workers, folder).items():
            os.environ.setdefault(name, value)
        arguments.kv_transfer_config = KVTransferConfig(kv_connector=_CONNECTOR, kv_role="kv_both")
    else:
        arguments.kv_offloading_backend = "native"
        arguments.kv_offloading_size = room.memory / 2**30
    logger.info(
        "keys and values are offloaded",
        extra={"by": "lmcache" if uses_lmcache else "vllm", "memory_bytes": room.memory, "disk_bytes": room.disk},
    )


def lmcache_variables(room: OffloadSpace, workers: int, folder: Path) -> dict[str, str]:
    """Return LMCache's variables for an engine with this number of workers. Each worker has a part of the room."""
    return {
        "LMCACHE_LOCAL_CPU": "true",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": _gib(room.memory // workers),
        "LMCACHE_LOCAL_DISK": f"file://{folder}/",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": _gib(room.disk // workers),
        "LMCACHE_ENABLE_LAZY_MEMORY_ALLOCATOR": "true",
        "PYTHONHASHSEED": "0",  # all workers must hash alike
    }


def own_folder(root: Path) -> Path:
    """Return an empty folder in `root`, which is ours, that no other engine uses until this process ends."""
    for number in itertools.count():
        folder = root / str(number)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)  # held until this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        for left in folder.iterdir():  # by an engine that has ended
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        return folder
    raise AssertionError  # the count has no end


def keeps_salts_apart(config: VllmConfig) -> bool:
    """Tell whether prompts with different `cache_salt` are known to share nothing."""
    return all(name in _BY_SALT for name in _connectors(config.kv_transfer_config))


def keeps_media_apart(config: VllmConfig) -> bool:
    """Tell whether prompts with different images or sounds are known to share nothing."""
    return all(name in {*_BY_MEDIA, _OTHERS} for name in _connectors(config.kv_transfer_config))


def _connectors(transfer: KVTransferConfig | None) -> Iterator[str]:
    """Yield the names of a connector and of those in it."""
    return iter(()) if transfer is None else _names(vars(transfer))


def _asked_connectors(arguments: EngineArgs) -> Iterator[str]:
    """Yield the names of the connectors that these arguments ask for."""
    yield from _connectors(arguments.kv_transfer_config)
    if arguments.kv_offloading_size is not None and arguments.kv_offloading_backend == _LIBRARY:
        yield _SERVER_CONNECTOR


def _names(transfer: Mapping[str, Any]) -> Iterator[str]:
    yield _OTHERS if transfer.get("kv_connector_module_path") else transfer.get("kv_connector") or _OTHERS
    for child in (transfer.get("kv_connector_extra_config") or {}).get("connectors", ()):
        yield from _names(child)


def _asked(backend: BackendDeclaration, properties: ServingProperties) -> tuple[bool, str | None]:
    """Return the values of both options, of which other backends that run on vLLM have none."""
    values = backend.values(properties)
    return values.get("lmcache_auto_config", False), values.get("lmcache_config_file")


def _memory(model_bytes: int, engines: int, *, within: Path | None) -> int:
    """Return the bytes of memory for one engine. They must fit into the file system of `within`, too."""
    free = free_memory()
    if free is None:
        raise ConfigError(f"{AUTO}: the system does not say how much memory is free; use option.kv_offloading_size")
    memory, where = share(free, model_bytes, engines), "memory"
    if within is not None and within.is_dir():
        in_shared = int(shutil.disk_usage(within).free * 0.9) // engines
        if in_shared < memory:
            memory, where = in_shared, f"{within} (docker run --shm-size)"
    if memory < LEAST:
        raise ConfigError(
            f"{AUTO}: at least {LEAST:,} bytes are needed for each engine, but {memory:,} are free in {where}"
        )
    return memory


def _gib(size: int) -> str:
    return f"{size / 2**30:.3f}"


def _has_lmcache() -> bool:
    return importlib.util.find_spec(_LIBRARY) is not None
