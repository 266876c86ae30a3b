"""Folders for outputs and answers, in S3 or on this machine. A file appears in one step: nobody reads half of it.

boto3 is imported when it is first needed, because it takes half a second and most servers never use it.
"""

from __future__ import annotations

import functools
import os
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.files import write_whole
from lmi_handlers.model_files.s3_url import S3Url

if TYPE_CHECKING:
    from lmi_handlers.model_files.s3 import Bucket


class Folder(ABC):
    """A folder that is written to. A `name` is a relative path, with slashes and without `..`."""

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the URL of the file `name`."""

    @abstractmethod
    def write(self, name: str, data: bytes, content_type: str) -> None:
        """Write a file. Raises `ConfigError` or `LoadFailed`."""

    @abstractmethod
    def new_file(self, name: str) -> IO[bytes]:
        """Return a temporary file, to be written and added under `name`. Raises `OSError` or `ConfigError`."""

    @abstractmethod
    def add(self, file: IO[bytes], name: str) -> str:
        """Keep a temporary file, which is complete, under `name`. Returns where it is.

        Raises `OSError`, `ConfigError` or `LoadFailed`.
        """


class LocalFolder(Folder):
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def url(self, name: str) -> str:
        return (self._path / name).as_uri()

    def write(self, name: str, data: bytes, content_type: str) -> None:  # noqa: ARG002  files have no type
        target = self._target(name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, data)
        except OSError as error:
            raise ConfigError(f"{target} could not be written: {error.strerror}") from error

    def new_file(self, name: str) -> IO[bytes]:
        target = self._target(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)

    def add(self, file: IO[bytes], name: str) -> str:
        target = self._target(name)
        umask = os.umask(0)
        os.umask(umask)
        Path(file.name).chmod(0o666 & ~umask)  # temporary files are private
        Path(file.name).replace(target)
        return str(target)

    def _target(self, name: str) -> Path:
        """Return the path of a file. Raises `ConfigError` if it is not below the folder: a key in S3 is any text."""
        if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ConfigError(f"the output {name!r} cannot be a file: its name has an empty part, '.', '..' or a NUL")
        return self._path / name


class S3Folder(Folder):
    """A prefix in S3. Large files are collected in temporary ones, because an object is written at once."""

    def __init__(self, prefix: S3Url) -> None:
        self._prefix = prefix

    def check_exists(self) -> None:
        """Raise `ConfigError` or `LoadFailed` if there is no such bucket."""
        self._bucket.check_exists()

    def url(self, name: str) -> str:
        return str(S3Url(self._prefix.bucket, self._key(name)))

    def write(self, name: str, data: bytes, content_type: str) -> None:
        key = self._key(name)
        with self._bucket.explained(key):
            self._bucket.client.put_object(Bucket=self._prefix.bucket, Key=key, Body=data, ContentType=content_type)

    def new_file(self, name: str) -> IO[bytes]:  # noqa: ARG002
        return tempfile.NamedTemporaryFile(prefix="lmi-transform-", delete=False)

    def add(self, file: IO[bytes], name: str) -> str:
        key = self._key(name)
        with self._bucket.explained(key):
            file.seek(0)
            self._bucket.client.upload_fileobj(file, self._prefix.bucket, key)
        os.unlink(file.name)  # noqa: PTH108  the name of a temporary file is text
        return self.url(name)

    def _key(self, name: str) -> str:
        prefix = self._prefix.key.rstrip("/")
        return f"{prefix}/{name}" if prefix else name

    @functools.cached_property
    def _bucket(self) -> Bucket:
        from lmi_handlers.model_files.s3 import Bucket

        return Bucket(self._prefix)
