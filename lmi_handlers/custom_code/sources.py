"""The files of a model's folder that `lmi serve --reload` watches."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

PROPERTIES = "serving.properties"
_MOST_FILES = 10_000

_Seen = dict[str, tuple[int, int]]


class Sources:
    """The Python files in a folder and the folders in it, and serving.properties.

    Polled: file-system notifications need a compiled library and do not work on every file system.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = self._look()

    def changed(self) -> list[str]:
        """Return the files, relative to the folder, that have changed, come or gone since the previous call."""
        before, self._seen = self._seen, self._look()
        return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _look(self) -> _Seen:
        seen: _Seen = {}
        for path in itertools.islice(self._paths(), _MOST_FILES):
            with contextlib.suppress(OSError):  # it has just gone
                found = path.stat()
                seen[str(path.relative_to(self._directory))] = (found.st_mtime_ns, found.st_size)
        return seen

    def _paths(self) -> Iterator[Path]:
        yield self._directory / PROPERTIES
        for folder, folders, names in os.walk(self._directory):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
            yield from (Path(folder) / name for name in names if name.endswith(".py"))
