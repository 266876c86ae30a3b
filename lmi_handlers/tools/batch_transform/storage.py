"""A job's inputs and outputs: local files and folders, or S3."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.s3_url import check_s3_url, is_s3, parse_s3_url
from lmi_handlers.model_files.storage import Folder, LocalFolder, S3Folder
from lmi_handlers.tools.client.inputs import InputFile, input_files

SUFFIX = ".out"


def find_inputs(location: str, target: str = "") -> list[InputFile]:
    """Return the files of a location, as `input_files` does. Raises `ConfigError` or `LoadFailed`.

    If outputs go to the same folder, `target`, those of an earlier job are left out.
    """
    files = input_files(location)
    if len(files) > 1 and _place(location) == _place(target):
        files = [file for file in files if not file.name.endswith(SUFFIX)]
    if not files:
        raise ConfigError(f"--input {location} has no files")
    return files


class OutputFile:
    """The output of a file, which appears once it is complete."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._file = folder.new_file(name)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def complete(self) -> str:
        """Make it appear, and return where. Raises `OSError`, `ConfigError` or `LoadFailed`."""
        with self._file:
            self._file.flush()
            return self._folder.add(self._file, self._name)

    def discard(self) -> None:
        """Drop it."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file.name)  # noqa: PTH108  the name of a temporary file is text


def open_folder(location: str) -> Folder:
    """Return the folder at a location. Raises `ConfigError` or `LoadFailed`."""
    if is_s3(location):
        check_s3_url(location)
        folder = S3Folder(parse_s3_url(location))
        folder.check_exists()
        return folder
    path = Path(location)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {location}: {error.strerror}") from None
    return LocalFolder(path)


def _place(location: str) -> str:
    return location.rstrip("/") if is_s3(location) else str(Path(location).resolve())
