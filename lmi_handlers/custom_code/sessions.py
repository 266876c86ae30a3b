"""`djl_python.session_manager`: what a handler remembers from one request of a client to the next, in files."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.files import own_temporary_folder, write_whole
from lmi_handlers.sessions import store

_DEFAULTS = ServingProperties()
_MAX_NAME = 255


class Session:
    """A client's files, in the folder `files_path`, until `expiration_ts`, in seconds since 1970.

    Values are pickled, as in LMI: they may be anything, only the handler writes them, and nobody else may enter the
    folder. All processes of the handler see the same files.
    """

    def __init__(self, session: store.StoredSession, sessions: store.SessionStore, max_size: int) -> None:
        self.session_id = session.session_id
        self.files_path = str(session.path)
        self.expiration_ts = session.expires
        self._sessions = sessions
        self._max_size = max_size

    def put(self, key: str, value: Any) -> None:
        """Keep a value. Others see the old one or the new one. Raises `ValueError` if it is too large."""
        path = self._path(key)
        data = pickle.dumps(value)
        self._check_size(path, len(data))
        write_whole(path, data)

    def get(self, key: str, d: Any = None) -> Any:
        """Return a value, or `d`."""
        try:
            return pickle.loads(self._path(key).read_bytes())  # noqa: S301  see the class
        except FileNotFoundError:
            return d

    def get_as_numpy(self, key: str, shape: Any, dtype: Any = "float32", create: bool = False) -> Any:  # noqa: FBT001, FBT002, RUF100  DJL's signature
        """Return an array in a file that is mapped into memory: what one process writes, all others see.

        With `create`, it is all zeros. Raises `FileNotFoundError` without it, and `ValueError` if it is too large.
        """
        import numpy as np

        path = self._path(key)
        self._check_size(path, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        return np.memmap(path, dtype=dtype, mode="w+" if create else "r+", shape=shape)

    def remove(self) -> bool:
        """Delete the session. Raises `ValueError` if it is not there."""
        try:
            self._sessions.close(self.session_id)
        except store.UnknownSession as error:
            raise ValueError(str(error)) from error
        return True

    def _path(self, key: str) -> Path:
        """Return the file of a key. As in LMI, slashes become dashes. Raises `ValueError`."""
        name = str(key).replace("/", "-")
        if not name or name.startswith(".") or "\0" in name or len(os.fsencode(name)) > _MAX_NAME:
            raise ValueError(f"{str(key)[:_MAX_NAME]!r} cannot be a key of a session")
        return Path(self.files_path, name)

    def _check_size(self, path: Path, size: int) -> None:
        if not path.parent.is_dir():
            raise ValueError(f"session not found: {self.session_id!r}")
        with os.scandir(path.parent) as entries:
            others = sum(entry.stat().st_size for entry in entries if entry.name != path.name)
        if others + size > self._max_size:
            raise ValueError(
                f"the session would have {others + size} bytes: at most {self._max_size} are allowed "
                "(option.max_session_size)"
            )


class SessionManager:
    """The sessions of all processes, made of the properties of the first call.

    These say where they lie (`sessions_path`), how many seconds they last (`sessions_expiration`), how many there may be
    (`max_sessions`) and how many bytes each may have (`max_session_size`).
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.sessions_path = properties.get("sessions_path") or str(own_temporary_folder("djl_sessions"))
        self.expiration = int(properties.get("sessions_expiration", _DEFAULTS.sessions_expiration))
        self._max_size = int(properties.get("max_session_size", _DEFAULTS.max_session_size))
        limit = int(properties.get("max_sessions", _DEFAULTS.max_sessions))
        self._store = store.SessionStore(Path(self.sessions_path), expiration=self.expiration, limit=limit)

    def create_session(self) -> Session:
        """Begin a session, whose id nobody can guess. Raises `QueueFull` if there are too many."""
        return Session(self._store.create(), self._store, self._max_size)

    def get_session(self, session_id: str | None) -> Session | None:
        """Return a session. None without an id, or if a new one is asked for. Raises `ValueError` if there is no such one."""
        if not session_id or session_id == "NEW_SESSION":
            return None
        try:
            return Session(self._store.open(session_id), self._store, self._max_size)
        except store.UnknownSession as error:
            raise ValueError(str(error)) from error

    def close_session(self, session_id: str | None) -> None:
        """End a session. Raises `ValueError` if there is no such one."""
        session = self.get_session(session_id)
        if session is None:
            raise ValueError(f"invalid session_id: {session_id}")
        session.remove()
