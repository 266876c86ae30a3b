"""A file that is written in pieces in any order, and verified by a thread that follows."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

from lmi_handlers.model_files.checksum import Checksum, Digest

_READ_SIZE = 1 << 20
"""Smaller pieces would hand the interpreter's lock over more often."""

_STRIDE = 1 << 22
"""Bytes that must be complete before the thread goes on. Waking it for each piece would cost more than the checksum."""


class ArrivingFile:
    """The file that the transfer manager writes, on one thread.

    The checksum is computed of the file, as far as it is complete from its beginning, while the rest arrives: most of it
    is done when the last piece comes. If a piece comes again, it is computed once more.
    """

    def __init__(self, path: Path, checksum: Checksum | None) -> None:
        self._path = path
        self._checksum = checksum
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._position = 0
        self._complete = 0
        self._announced = 0
        self._ahead: dict[int, int] = {}
        self._repeated = False
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._follow: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._digest = None if checksum is None else Digest(checksum)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int) -> None:
        self._position = offset

    def tell(self) -> int:
        return self._position

    def write(self, data: bytes) -> None:
        start = self._position
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self._file, rest, self._position)
            self._position += count
            rest = rest[count:]
        if start < self._complete or start in self._ahead:
            self._repeated = True
        self._ahead[start] = self._position
        while (end := self._ahead.pop(self._complete, None)) is not None and end > self._complete:
            self._complete = end
        if self._complete >= self._announced + _STRIDE:
            self._announce()

    def close(self, size: int) -> bool:
        """End the file, which must be called once. Return whether it has `size` bytes and the checksum."""
        self._announce()
        self._follow.put(None)
        self._thread.join()
        is_complete = os.fstat(self._file).st_size == size and (self._repeated or self._complete == size)
        if self._repeated and is_complete and self._checksum is not None:
            self._digest = Digest(self._checksum)
            self._read(0, size)
        os.close(self._file)
        return is_complete and (self._digest is None or self._digest.matches())

    def _announce(self) -> None:
        self._announced = self._complete
        self._follow.put(self._complete)

    def _run(self) -> None:
        done = 0
        while (end := self._follow.get()) is not None:
            self._read(done, end)
            done = end

    def _read(self, start: int, end: int) -> None:
        while self._digest is not None and start < end:
            count = os.preadv(self._file, [self._buffer[: end - start]], start)
            self._digest.update(self._buffer[:count])
            start += count
