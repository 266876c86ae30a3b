"""Files for reports: a tool finds out that one cannot be written before it asks anything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.storage import LocalFolder
from lmi_handlers.tools.client.json_bytes import json_bytes


class ReportFile:
    """A report that is being written. Without a file, nothing is."""

    def __init__(self, option: str, path: Path | None, file: IO[bytes] | None) -> None:
        self._option = option
        self._path = path
        self._file = file

    def write(self, data: bytes) -> None:
        """Write a part. Raises `ConfigError`."""
        if self._file is not None:
            with self.explained():
                self._file.write(data)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise `ConfigError` for errors of the file."""
        try:
            yield
        except OSError as error:
            raise ConfigError(f"{self._option} {self._path}: {error.strerror}") from error


@contextlib.contextmanager
def report_file(option: str, path: Path | None) -> Iterator[ReportFile]:
    """Yield the file that an option names, if it does. It appears when it is complete. Raises `ConfigError`.

    What cannot be replaced is written to as it is: anything but a regular file, such as /dev/stdout, a file that is mounted
    into a container, or one in a folder that is not writable.
    """
    if path is None:
        yield ReportFile(option, None, None)
        return
    folder = LocalFolder(path.parent)
    with ReportFile(option, path, None).explained():
        in_place = path.is_symlink() or (path.exists() and not _is_replaceable(path))
        file = path.open("wb") if in_place else folder.new_file(path.name)
    report = ReportFile(option, path, file)
    try:
        yield report
        with report.explained():
            file.flush()
            if not in_place:
                folder.add(file, path.name)
            file.close()
    except BaseException:
        with contextlib.suppress(OSError):  # what cannot be written, it tries once more
            file.close()
        if not in_place:
            Path(file.name).unlink(missing_ok=True)
        raise


def json_file(document: object) -> bytes:
    """Return a document as a file of JSON."""
    return json_bytes(document, indent=2) + b"\n"


def _is_replaceable(path: Path) -> bool:
    return path.is_file() and not os.path.ismount(path) and os.access(path.parent, os.W_OK)
