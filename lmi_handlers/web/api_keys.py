"""The API keys that clients may have: one of the environment, and any number in a file, each with a label.

    # tenant        key
    team-a          Hk3t0bZ7...
    team-b          p9Wc5xQe...

The file is read again when it changes. Labels are what the log and the metrics show; keys are shown nowhere.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from lmi_handlers.core.errors import ConfigError

KEY = "API_KEY"
KEY_FILE = "LMI_API_KEY_FILE"

MAX_KEYS = 1000
"""Maximum number of keys in a file."""

MAX_FILE_BYTES = 1 << 20

_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_API_KEY = re.compile(r"[\x21-\x7e]{8,512}")
_LOOK_INTERVAL = 1.0

logger = logging.getLogger(__name__)

_State = tuple[int, int, int]


def key_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable for which clients need a key, or "" if they need none."""
    return next((name for name in (KEY, KEY_FILE) if environ.get(name, "").strip()), "")


def read_api_keys(path: Path) -> dict[str, str]:
    """Return the label of each key in a file. Raises `ConfigError`, which quotes nothing of the file."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(MAX_FILE_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{KEY_FILE} {path} cannot be read: {type(error).__name__}") from error
    if mode & 0o002:
        raise ConfigError(f"{KEY_FILE} {path} can be written by every user: chmod o-w")
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{KEY_FILE} {path} is larger than {MAX_FILE_BYTES} bytes")
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not _LABEL.fullmatch(words[0]) or not _API_KEY.fullmatch(words[1]):
            raise ConfigError(
                f"{KEY_FILE} {path}, line {number}: must be a label of at most 64 letters, digits, dots, dashes or "
                "underscores, and a key of 8 to 512 printable ASCII characters"
            )
        if keys.setdefault(words[1], words[0]) != words[0]:
            raise ConfigError(f"{KEY_FILE} {path}, line {number}: this key has another label already")
        if len(keys) > MAX_KEYS:
            raise ConfigError(f"{KEY_FILE} {path} has more than {MAX_KEYS} keys")
    if not keys:
        raise ConfigError(f"{KEY_FILE} {path} has no key")
    return keys


class ApiKeys:
    """The keys that a web worker accepts. Thread-safe.

    `key` is the one of the environment, whose label is "API_KEY". `path` is the file with others. It is looked at once per
    second while there are requests. If it cannot be used, the keys that it had before stay valid.
    """

    def __init__(self, key: str | None, path: Path | None = None) -> None:
        """Raises `ConfigError` if the file cannot be used."""
        self._own = {os.fsencode(key): KEY} if key else {}
        self._path = path
        self._secret = os.urandom(32)
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen = None if path is None else _state(path)
        self._labels = self._hashed({} if path is None else read_api_keys(path))

    @property
    def required(self) -> bool:
        """True if requests need a key."""
        return bool(self._labels)

    def label_of(self, given: bytes) -> str | None:
        """Return the label of a key, or None if it is not valid.

        Keys are looked up by hashes with a random secret, so the time that this takes tells nothing about other keys.
        """
        if self._path is not None and time.monotonic() >= self._looked + _LOOK_INTERVAL:
            self._look(self._path)
        return self._labels.get(self._hash(given))

    def _look(self, path: Path) -> None:
        with self._lock:
            self._looked = time.monotonic()
            state = _state(path)
            if state == self._seen:
                return
            self._seen = state
            try:
                self._labels = self._hashed(read_api_keys(path))
            except ConfigError as error:
                logger.error(
                    "the new API keys cannot be used, those from before stay valid", extra={"cause": str(error)}
                )
            else:
                logger.info("API keys read again", extra={"path": str(path), "number": len(self._labels)})

    def _hashed(self, keys: Mapping[str, str]) -> dict[bytes, str]:
        return {
            self._hash(key): label for key, label in ({key.encode(): keys[key] for key in keys} | self._own).items()
        }

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret).digest()


def _state(path: Path) -> _State | None:
    """Return what changes with the file, None if there is none. Links may lead to another file, as in Kubernetes."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
