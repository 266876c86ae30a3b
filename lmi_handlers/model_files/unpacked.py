"""Makes an archive a folder in the cache, for as long as it is used."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from lmi_handlers.model_files.archive import unpack
from lmi_handlers.model_files.cache_dir import archive_key
from lmi_handlers.model_files.model_cache import ModelCache
from lmi_handlers.model_files.secure_mode import check_fetched


@contextlib.contextmanager
def unpacked(archive: Path, cache: ModelCache) -> Iterator[Path]:
    """Yield the folder that `archive`, a file on this machine, holds. It stays as it is until the block ends.

    Raises `ConfigError` if the archive is damaged or hostile, `LoadFailed` if another try may help.
    """
    key = archive_key(archive)

    def fill(partial: Path) -> Path:
        return unpack_entry(archive, partial, cache, key, name=str(archive), progress=_ignore)

    with cache.use(key, fill, _ignore) as folder:
        check_fetched(folder)
        yield content_of(folder)


def unpack_entry(
    archive: Path, partial: Path, cache: ModelCache, key: str, *, name: str, progress: Callable[[int], None]
) -> Path:
    """Unpack `archive` into a folder in `partial`, which is the folder of the cache entry `key` until it is complete.

    `name`, `progress` and the errors are those of `unpack`. After an error, nothing of the content stays on the disk.
    """
    folder = partial / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)  # left over from a killed process
    folder.mkdir()
    try:
        unpack(archive, folder, name=name, make_room=lambda size: cache.make_room(size, key), progress=progress)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def content_of(folder: Path) -> Path:
    """Return the only folder in an archive, or else the whole archive."""
    content = list(folder.iterdir())
    return content[0] if len(content) == 1 and content[0].is_dir() else folder


def _ignore(done: int) -> None:
    """Nobody waits long for an archive on this machine."""
