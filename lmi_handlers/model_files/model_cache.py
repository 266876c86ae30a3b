"""Keeps downloaded models in a folder with a limit. The least recently used ones that nobody uses are deleted first.

Each entry is a folder, with a lock file beside it. Whoever uses the entry holds a shared lock, whoever downloads or
deletes it an exclusive one. The system releases a lock however its process ends. A folder without a lock file is somebody
else's: it is neither counted nor deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.load_failure import load_failure

_PARTIAL = ".partial"
_LOCK = ".lock"
_INTERVAL = 0.5


class ModelCache:
    """The entries in `folder`, which may take `limit` bytes in all, if that is not None."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self._folder = folder
        self._limit = limit

    def __contains__(self, key: str) -> bool:
        return (self._folder / key).is_dir()

    @contextlib.contextmanager
    def use(self, key: str, fill: Callable[[Path], Path], wait: Callable[[int], None]) -> Iterator[Path]:
        """Yield the entry's folder, which is not deleted or changed until the block ends.

        If the entry is missing, `fill` is called with a partial folder, which may hold files of an interrupted call. It
        returns the folder to publish. Only one process fills an entry. The others wait, and call `wait` again and
        again with the bytes that it has written so far.
        """
        folder, partial = self._folder / key, self._folder / f"{key}{_PARTIAL}"
        with contextlib.ExitStack() as stack:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self._folder / f"{key}{_LOCK}").open("a"))
                _acquire(lock, fcntl.LOCK_SH, partial, wait)
                while not folder.is_dir():
                    _acquire(lock, fcntl.LOCK_EX, partial, wait)
                    if not folder.is_dir():
                        partial.mkdir(exist_ok=True)
                        fill(partial).rename(folder)
                        shutil.rmtree(partial)
                    _acquire(lock, fcntl.LOCK_SH, partial, wait)  # another process may delete the folder just before
                os.utime(lock.fileno())
            except OSError as error:
                verdict = ConfigError(f"{key} cannot be written to {self._folder} (LMI_CACHE_DIR): {error}")
                raise load_failure(verdict, error) from error
            yield folder

    def hold(self, path: Path) -> TextIO | None:
        """Return a lock on the entry with the folder `path`, which keeps it until it is closed.

        Returns None if the folder is not in the cache, or not any more.
        """
        if not path.is_relative_to(self._folder):
            return None
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):  # another process deletes the entry
            lock = stack.enter_context(self._lock_of(self._folder / path.relative_to(self._folder).parts[0]).open("r+"))
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if path.is_dir():
                os.utime(lock.fileno())
                stack.pop_all()
                return lock
        return None

    def make_room(self, size: int, keep: str) -> int:
        """Delete entries until `size` more bytes are allowed and fit on the disk. Return how many more do after that.

        `keep` is the entry that they are for; what has arrived of it counts. Raises `ConfigError` with the figures.
        """
        sizes = {path: _size(path) for path in self._folder.iterdir() if self._is_entry(path)}
        own = self._folder / f"{keep}{_PARTIAL}"
        name = keep.rpartition("-")[0]
        for path in sorted(sizes, key=self._last_use):
            is_outdated = path.name.endswith(_PARTIAL) and path.name.rpartition("-")[0] == name
            if path == own or (self._fits(size, sum(sizes.values())) and not is_outdated):
                continue
            if self._delete(path):
                del sizes[path]
        taken, free = sum(sizes.values()), shutil.disk_usage(self._folder).free
        if not self._fits(size, taken):
            limit = "" if self._limit is None else f", and option.model_cache_size is {in_gb(self._limit)}"
            raise ConfigError(
                f"{keep} needs {in_gb(size)} more in {self._folder} (LMI_CACHE_DIR), where {in_gb(free)} are free{limit}; "
                f"models there that are in use take {in_gb(taken)}"
            )
        return min(free, free if self._limit is None else self._limit - taken) - size

    def _is_entry(self, path: Path) -> bool:
        return path.is_dir() and self._lock_of(path).is_file()

    def _fits(self, size: int, taken: int) -> bool:
        allowed = self._limit is None or taken + size <= self._limit
        return allowed and size <= shutil.disk_usage(self._folder).free

    def _last_use(self, path: Path) -> float:
        with contextlib.suppress(OSError):
            return self._lock_of(path).stat().st_mtime
        return 0.0

    def _lock_of(self, path: Path) -> Path:
        return self._folder / f"{path.name.removesuffix(_PARTIAL)}{_LOCK}"

    def _delete(self, path: Path) -> bool:
        """Delete the entry, or what has arrived of it, unless it is in use. Its lock file stays: others may wait for it."""
        with self._lock_of(path).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not path.name.endswith(_PARTIAL):  # gone at once for whoever looks, even if this process is killed
                partial = path.with_name(f"{path.name}{_PARTIAL}")
                shutil.rmtree(partial, ignore_errors=True)
                path = path.rename(partial)
            shutil.rmtree(path)
        return True


def in_gb(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _acquire(lock: TextIO, kind: int, partial: Path, wait: Callable[[int], None]) -> None:
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return
        wait(_size(partial))
        time.sleep(_INTERVAL)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another process is at work
                total += (Path(parent) / name).stat().st_size
    return total
