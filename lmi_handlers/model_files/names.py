"""Names of files that come from outside: keys of objects in a bucket, members of an archive."""

from __future__ import annotations

from collections.abc import Iterable

from lmi_handlers.core.errors import ConfigError

_LONGEST_NAME, _LONGEST_PATH = 255, 1024
"""Bytes: Linux's limit for a name, and S3's for a key."""


def check_name(name: str, where: str) -> None:
    """Raise `ConfigError` unless the relative path `name` stays inside any folder, and is the same file on any system.

    `where` completes the message, for example "s3://bucket/model/".
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or not name.isprintable() or "\\" in name:
        raise ConfigError(f"{where} holds {name!r}, which is not a safe file name")
    data = name.encode("utf-8", "surrogatepass")
    if len(data) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise ConfigError(f"{where} holds {name[:64]!r}..., a file name of {len(data)} bytes")


def check_names(names: Iterable[str], where: str) -> None:
    """Check all names of one folder, and that none of them is both a file and a folder. Raises `ConfigError`."""
    files: set[str] = set()
    for name in names:
        check_name(name, where)
        files.add(name)
    for name in files:
        folder = name
        while folder := folder.rpartition("/")[0]:
            if folder in files:
                raise ConfigError(f"{where} holds {folder!r} as a file and as a folder")
