"""Files that others see whole or not at all, and folders that nobody else can have prepared."""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from pathlib import Path

from lmi_handlers.core.errors import ConfigError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one step: others see what was there before, or all of `data`. Leaves nothing if it fails.

    Raises `OSError`, for example because the disk is full or the folder is gone.
    """
    written = path.with_name(f".{uuid.uuid4()}")
    try:
        with written.open("xb") as file:
            file.write(data)
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def own_temporary_folder(name: str) -> Path:
    """Return this user's folder in the directory for temporary files, after making it if it is not there.

    Everybody can write to that directory. A folder of this name that is not ours, that is a link, or that others can
    write to may hold files that somebody has planted. Raises `ConfigError` for it, and if there is no such directory.
    """
    folder = temporary_directory() / f"{name}-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        cause = "it is not a folder"
    elif status.st_uid != os.geteuid():
        cause = f"it belongs to user {status.st_uid}"
    elif status.st_mode & 0o022:
        cause = f"its mode {stat.S_IMODE(status.st_mode):o} lets others write to it"
    else:
        return folder
    raise ConfigError(f"{folder} is not used, because {cause}: delete it, or set another TMPDIR")


def temporary_directory() -> Path:
    """Return the directory for temporary files. Raises `ConfigError` if none can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError("no directory for temporary files can be written: set TMPDIR to one") from error
