"""The cache directory. It holds converted checkpoints, and downloads if the hub's own cache is not writable."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from lmi_handlers.config.environment import declared_variables
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.process_settings import ProcessSettings
from lmi_handlers.config.sizes import parse_bytes
from lmi_handlers.core.files import own_temporary_folder
from lmi_handlers.model_files.model_cache import ModelCache

# Part of every cache key. Increase it when the output of a conversion changes, or models are converted that were refused.
CONVERSION_VERSION = 2

_CHECKPOINT = (".safetensors", ".bin", ".json", ".py")


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Return `$LMI_CACHE_DIR`, else `$XDG_CACHE_HOME/lmi-handlers`, else `~/.cache/lmi-handlers`.

    Instead of the last two it returns this user's folder in the temporary directory if they are not writable: SageMaker
    mounts /opt/ml/model read-only, and may run the container without a writable home directory. Raises `ConfigError` if
    that folder may hold somebody else's files.
    """
    if (named := named_cache_dir(environ)) is not None:
        return named
    if home := environ.get("XDG_CACHE_HOME"):
        preferred = Path(home) / "lmi-handlers"
    else:
        preferred = Path(environ.get("HOME", "/")) / ".cache" / "lmi-handlers"
    return preferred if can_write(preferred) else own_temporary_folder("lmi-handlers")


def named_cache_dir(environ: Mapping[str, str]) -> Path | None:
    """Return `$LMI_CACHE_DIR`, or None if it is not set."""
    named: Path | None = declared_variables(ProcessSettings)["cache_dir"].value(environ)
    return named


def model_cache(properties: ServingProperties, environ: Mapping[str, str]) -> ModelCache:
    """Return the cache of what was downloaded from S3 or unpacked. Raises `ConfigError` for a wrong `model_cache_size`."""
    size = properties.model_cache_size
    limit = None if size is None else parse_bytes(size, "option.model_cache_size")
    return ModelCache(default_cache_dir(environ) / "models", limit)


def can_write(folder: Path) -> bool:
    """Tell whether `folder` is writable, or can be created."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def converted_dir(gguf_file: Path, cache_dir: Path) -> Path:
    """Return the folder for the converted form of `gguf_file`. It exists once the file has been converted."""
    return cache_dir / f"{gguf_file.stem}-{_fingerprint(gguf_file)}"


def prepared_dir(gguf_file: Path, cache_dir: Path) -> Path:
    """Return the folder for what an engine needs that reads `gguf_file` itself."""
    return cache_dir / f"{gguf_file.stem}-{_fingerprint(gguf_file)}-gguf"


def archive_key(archive: Path) -> str:
    """Return the name of the cache entry for what `archive` holds. It changes with the file."""
    return f"{archive.name.partition('.')[0][:64]}-{_fingerprint(archive)}"


def checkpoint_dir(model: Path, cache_dir: Path) -> Path:
    """Return the folder for what an engine converts the checkpoint in the folder `model` to."""
    files = sorted(file for file in model.iterdir() if file.suffix in _CHECKPOINT)
    return cache_dir / f"{model.name}-{_fingerprint(*files)}"


def _fingerprint(*files: Path) -> str:
    # Not a hash of the content: a start must not read many gigabytes just to find the file in the cache.
    key = str(CONVERSION_VERSION)
    for file in files:
        status = file.stat()
        key += f"\0{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]
