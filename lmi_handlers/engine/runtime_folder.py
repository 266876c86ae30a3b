"""The server's folder below TMPDIR, with its sockets, heartbeats and metrics. The server ends if it loses any of them.

A cleaner of temporary files may delete them. Engines hold their files open and would never notice, web workers would
not find an engine again, and none could be started. A folder cannot be put back under open sockets, so the server ends,
and whoever runs it starts another.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lmi_handlers.core.log import tell

_SOUND = "sound"
"""File that exists until the server has given up. Deleting it takes no disk, and it is gone with the folder."""

_LOOK_INTERVAL = 0.5

logger = logging.getLogger(__name__)


def make_runtime_folder() -> Path:
    """Make the folder of a new server. Raises `OSError`.

    It stays locked as long as this process or a fork of it lives: systemd-tmpfiles then deletes nothing in it, however old
    (https://systemd.io/TEMPORARY_DIRECTORIES).
    """
    folder = Path(tempfile.mkdtemp(prefix="lmi-"))
    (folder / _SOUND).touch(mode=0o600)
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
    return folder


def end_server(folder: Path, arbiter: int) -> None:
    """Make the server finish its requests and exit with status 1. `arbiter` is the id of its first process."""
    with contextlib.suppress(OSError):
        (folder / _SOUND).unlink(missing_ok=True)
    os.kill(arbiter, signal.SIGTERM)


def has_given_up(folder: Path) -> bool:
    """Tell whether the server has failed."""
    return not os.path.exists(folder / _SOUND)  # noqa: PTH110  False without access, where `Path.exists` raises


def watch(folder: Path, needed: Callable[[], Iterable[Path]], end: Callable[[], None]) -> None:
    """Look after the folder and what is `needed` in it at the moment. If any of it is lost, say so and call `end`.

    An owner's lost permissions are given back.
    """
    known = folder.stat()

    def run() -> None:
        missing: set[Path] = set()
        while True:
            now = _seen(folder)
            if now is None or not os.path.samestat(now, known):
                tell("error", f"{folder} was deleted or replaced; the server ends")
                return end()
            before = missing
            try:
                missing = {path for path in needed() if _seen(path) is None}
            except OSError:  # no file descriptor is left, for example: nothing is known
                missing = set()
            if lost := before & missing:  # twice: it may just have been put in place of another one
                tell("error", f"{min(lost)} was deleted; the server ends")
                return end()
            time.sleep(_LOOK_INTERVAL)

    threading.Thread(target=run, name="runtime-folder", daemon=True).start()


def _seen(path: Path) -> os.stat_result | None:
    """Return the status of a file that this user may use, or None."""
    try:
        status = path.stat()
        needs = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR | stat.S_IWUSR
        if status.st_mode & needs != needs:
            path.chmod(stat.S_IMODE(status.st_mode) | needs)
            logger.warning("permissions were taken away, and are restored", extra={"path": str(path)})
    except OSError:
        return None
    return status
