"""Keeps sessions as folders of files, so that all processes of a server share them, whichever of them dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from lmi_handlers.core.errors import InvalidRequest, QueueFull
from lmi_handlers.core.files import write_whole

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-[0-9a-z]{1,64})?", re.ASCII)
_EXPIRES = ".expires"
_SWEEP_INTERVAL = 1.0
_MAX_SWEPT = 200
_BEGINS = 60.0
"""Seconds in which a session is made, or its process has died."""


class UnknownSession(InvalidRequest):
    """There is no such session, or it has expired."""

    code = "unknown_session"


class StoredSession:
    """A session: an id that nobody can guess, and a folder with what is kept until `expires`, in seconds since 1970."""

    def __init__(self, path: Path, expires: float) -> None:
        self.session_id = path.name
        self.path = path
        self.expires = expires

    @property
    def announcement(self) -> str:
        """The value of `X-Amzn-SageMaker-Session-Id` with which SageMaker learns of a new session."""
        return f"{self.session_id}; Expires={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self.expires))}"

    def read(self, name: str) -> bytes | None:
        """Return what was written last, or None. `name` is a file's name, never a client's.

        Raises `UnknownSession`, and `QueueFull` if the disk fails.
        """
        with _room():
            try:
                return (self.path / name).read_bytes()
            except FileNotFoundError:
                if not self.path.is_dir():
                    raise _unknown(self.session_id) from None
                return None

    def replace(self, name: str, old: bytes | None, new: bytes) -> bool:
        """Write `new` if the content is still `old`, and tell whether it was.

        Raises `UnknownSession`, and `QueueFull` if there is no room, or no file descriptor left.
        """
        with _room(), self._locked():
            if self.read(name) != old:
                return False
            write_whole(self.path / name, new)
            return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with (self.path / _EXPIRES).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # held for the time of a write
                yield
        except FileNotFoundError:
            raise _unknown(self.session_id) from None


class SessionStore:
    """The sessions in a folder, which is made when the first of them is. Any number of processes may use it at once."""

    def __init__(self, directory: Path, *, expiration: float, limit: int, replica: str = "") -> None:
        """Let sessions last `expiration` seconds from their creation, and at most `limit` of them exist at a time.

        If the server is one of several replicas, their ids end with its name: `[0-9a-z]{1,64}`.
        """
        self._suffix = f"-{replica}" if replica else ""
        self._directory = directory
        self._expiration = expiration
        self._limit = limit
        self._swept = -_SWEEP_INTERVAL

    def create(self) -> StoredSession:
        """Begin a session. Raises `QueueFull` if there are too many, or if there is no room."""
        with _room():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            expires = time.time() + self._expiration
            path = self._directory / f"{uuid.uuid4()}{self._suffix}"
            path.mkdir(mode=0o700)
            try:
                write_whole(path / _EXPIRES, repr(expires).encode())
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
            return StoredSession(path, expires)

    def open(self, session_id: str) -> StoredSession:
        """Return a session that has begun. Raises `UnknownSession`, and `QueueFull` if the disk fails."""
        if not _ID.fullmatch(session_id):
            raise _unknown(session_id)
        with _room():
            session = StoredSession(self._directory / session_id, _expires(self._directory / session_id))
        if session.expires <= time.time():
            raise _unknown(session_id)
        return session

    def close(self, session_id: str) -> None:
        """End a session and delete all that it keeps. Raises `UnknownSession`."""
        shutil.rmtree(self.open(session_id).path, ignore_errors=True)

    def _sweep(self) -> None:
        """Delete what has expired. Raises `QueueFull` if too much is left."""
        with os.scandir(self._directory) as entries:
            paths = [Path(entry.path) for entry in entries if _ID.fullmatch(entry.name)]
        left = len(paths)
        now = time.monotonic()
        if left >= self._limit or now - self._swept >= _SWEEP_INTERVAL:
            self._swept = now
            for path in random.sample(paths, min(left, _MAX_SWEPT)):  # a few at a time, because requests wait for it
                with contextlib.suppress(OSError):  # a disk that fails says nothing about a session
                    if (_expires(path) or _begun(path) + _BEGINS) <= time.time():
                        shutil.rmtree(path, ignore_errors=True)
                        left -= 1
        if left >= self._limit:
            raise QueueFull(
                f"there are {left} sessions already (option.max_sessions={self._limit}): close some",
                code="too_many_sessions",
            )


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """Raise `QueueFull` in place of the errors of a disk."""
    try:
        yield
    except OSError as error:
        raise QueueFull(f"the session cannot be read or kept: {error.strerror}", code="session_not_kept") from error


def _expires(path: Path) -> float:
    """Return when a session expires, or 0.0 if it is not there, or was not finished."""
    try:
        return float((path / _EXPIRES).read_text())
    except (FileNotFoundError, ValueError):
        return 0.0


def _begun(path: Path) -> float:
    """Return when a session was last written to that has no time to expire, or 0.0 if it has just been deleted."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _unknown(session_id: str) -> UnknownSession:
    shown = session_id[:64].encode("ascii", "replace").decode()
    return UnknownSession(f"session not found: {shown!r}: it has expired or was closed, or never began")
