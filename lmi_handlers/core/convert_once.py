"""Converts files into a folder of the cache: once, completely or not at all, whoever else tries to at the same time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.load_failure import load_failure


def convert_once(folder: Path, convert: Callable[[Path], object], report: Callable[[str], None]) -> Path:
    """Return `folder`, after `convert` has written its content into another one if it does not exist yet.

    Only one process converts; the others wait. A conversion that fails or is killed leaves nothing behind that a later
    one would notice. Raises `ConfigError` if `folder` cannot be written, or `LoadFailed` if a retry may help.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), report):
            if folder.is_dir():
                return folder
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left over from a killed process
            partial.mkdir()
            try:
                convert(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        verdict = ConfigError(f"{folder.name} cannot be written to {folder.parent} (LMI_CACHE_DIR): {error}")
        raise load_failure(verdict, error) from error
    return folder


@contextmanager
def _locked(lock_file: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock on `lock_file`. The system releases it however the process ends."""
    with lock_file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process to convert the model")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
