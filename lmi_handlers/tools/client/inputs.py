"""Files that a tool reads: local files and folders, or S3."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.s3_url import check_s3_url, is_s3, parse_s3_url

if TYPE_CHECKING:
    from lmi_handlers.model_files.s3 import Bucket, S3Object

_BLOCK = 8 << 20
"""Bytes of an object that are read at a time."""


class InputFile(ABC):
    """A file to read. `name` is its path below the location that was given, with slashes."""

    name: str

    @abstractmethod
    def open_raw(self) -> IO[bytes]:
        """Open it as it is stored."""

    @contextlib.contextmanager
    def open(self, *, compressed: bool) -> Iterator[IO[bytes]]:
        """Open its content."""
        with self.open_raw() as file:
            yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if compressed else file


class LocalFile(InputFile):
    """A file of this machine."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    def open_raw(self) -> IO[bytes]:
        return self.path.open("rb")


class ObjectFile(InputFile):
    """An object in S3."""

    def __init__(self, bucket: Bucket, item: S3Object) -> None:
        self._bucket = bucket
        self._item = item
        self.name = item.name

    def open_raw(self) -> IO[bytes]:
        return io.BufferedReader(_ObjectReader(self._bucket, self._item), _BLOCK)


class _ObjectReader(io.RawIOBase):
    """Reads an object in ranges: one connection would not last as long as a tool reads from it."""

    def __init__(self, bucket: Bucket, item: S3Object) -> None:
        self._bucket = bucket
        self._item = item
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # of io.RawIOBase
        """Raises `ConfigError` or `LoadFailed`."""
        end = min(self._position + len(buffer), self._item.size)
        if end == self._position:
            return 0
        with self._bucket.explained(self._item.key):
            found = self._bucket.client.get_object(
                Bucket=self._bucket.url.bucket,
                Key=self._item.key,
                Range=f"bytes={self._position}-{end - 1}",
                IfMatch=self._item.etag,  # else the job would read two versions of it
            )
            data = found["Body"].read(end - self._position)  # a server may ignore the range
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def input_files(location: str) -> list[InputFile]:
    """Return the files of a location, in the order of their names. Raises `ConfigError` or `LoadFailed`.

    A location is a file, a folder with all files below it, or an S3 URL with all objects whose keys begin with it. Hidden
    files are left out, and a folder with a link out of it is refused: who made the link may not be allowed to read what it
    leads to, and what is read is sent to a server.
    """
    if not is_s3(location):
        path = Path(location)
        if path.is_dir():
            return [LocalFile(path / name, name) for name in sorted(_names_below(path))]
        if not path.exists():
            raise ConfigError(f"--input {location} does not exist")
        return [LocalFile(path, path.name)]
    bucket = _bucket(location)
    return [ObjectFile(bucket, item) for item in bucket.beginning_with() if not _is_hidden(item.name)]


def _names_below(folder: Path) -> Iterator[str]:
    """Yield the names of the files below a folder. Raises `ConfigError` for a link out of it."""
    for found in folder.rglob("*"):
        name = found.relative_to(folder).as_posix()
        if _is_hidden(name):
            continue
        if (target := target_outside(found, folder)) is not None:
            raise ConfigError(f"--input {folder}: {name} is a link to {target}, which is not in this folder")
        if found.is_file():
            yield name


def target_outside(path: Path, folder: Path) -> Path | None:
    """Return where a link leads if that is not in the folder, and None for all else."""
    if not path.is_symlink():
        return None
    target = Path(os.path.realpath(path))  # unlike `resolve`, it takes links that lead to each other
    return None if target.is_relative_to(folder.resolve()) else target


def _bucket(location: str) -> Bucket:
    check_s3_url(location)
    from lmi_handlers.model_files.s3 import Bucket  # imports boto3, an optional dependency

    return Bucket(parse_s3_url(location))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)
