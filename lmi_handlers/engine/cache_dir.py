"""The directory for what is made of a model once: converted checkpoints, and downloads where the hub's own cannot be written."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

# Part of every cache key; raise it when a conversion starts to write something else.
CONVERSION_VERSION = 1


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Return `$LMI_CACHE_DIR`, else `$XDG_CACHE_HOME/lmi-handlers`, else `~/.cache/lmi-handlers`.

    Where the last two cannot be written it is a folder under /tmp: SageMaker mounts
    /opt/ml/model read-only and may run the container without a home that can be written.
    """
    if named := environ.get("LMI_CACHE_DIR"):
        return Path(named)
    if home := environ.get("XDG_CACHE_HOME"):
        preferred = Path(home) / "lmi-handlers"
    else:
        preferred = Path(environ.get("HOME", "/")) / ".cache" / "lmi-handlers"
    return preferred if can_write(preferred) else Path(tempfile.gettempdir()) / "lmi-handlers"


def can_write(folder: Path) -> bool:
    """Tell whether `folder` can be written, or made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def converted_dir(gguf_file: Path, cache_dir: Path) -> Path:
    """Where the converted form of `gguf_file` is, once it has been converted."""
    return cache_dir / f"{gguf_file.stem}-{_fingerprint(gguf_file)}"


def _fingerprint(file: Path) -> str:
    # Not the content: a start must not read a file of many gigabytes only to learn that it is known already.
    status = file.stat()
    key = f"{CONVERSION_VERSION}\0{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]
