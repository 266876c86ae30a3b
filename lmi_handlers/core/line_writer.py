"""Writes lines to a descriptor that may have no reader, such as a pipe. Whoever has a line never waits for one."""

from __future__ import annotations

import contextlib
import os
from _queue import Empty, SimpleQueue
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from time import monotonic, sleep

# The names above are those of the operating system's threads, and gevent, which patches modules later, leaves them so.

MOST_BYTES = 256 * 1024
"""A line is dropped while so many bytes or more have not been written. A pipe itself holds 64 KiB."""

_RETRY_SECONDS = 0.01


class LineWriter:
    """A bounded queue and the thread that writes it, which starts with the first line.

    `notice` renders the line that stands in place of so many lines that were dropped, and `count` is told their number.
    """

    def __init__(self, descriptor: int, notice: Callable[[int], str], count: Callable[[int], object]) -> None:
        self._descriptor = descriptor
        self._notice = notice
        self._count = count
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._lock = allocate_lock()
        self._accepted = self._written = self._dropped = 0
        self._started = False

    def write(self, data: bytes) -> None:
        """Queue lines, or drop them."""
        if not data:
            return
        with self._lock:
            if self._accepted - self._written >= MOST_BYTES:
                lines = max(1, data.count(b"\n"))
                self._dropped += lines
                self._count(lines)
                return
            self._put(data)
            if not self._started:
                self._started = True
                start_new_thread(self._run, ())

    def flush(self, seconds: float) -> None:
        """Wait until everything has been written, but no longer than this."""
        deadline = monotonic() + seconds
        while self._written != self._accepted and monotonic() < deadline:
            sleep(0.001)

    def _put(self, data: bytes) -> None:
        self._accepted += len(data)
        self._queue.put(data)

    def _run(self) -> None:
        while True:
            data = self._next()
            write_all(self._descriptor, data)
            with self._lock:
                self._written += len(data)
                dropped, self._dropped = self._dropped, 0
                if dropped:  # after the lines that were accepted before them
                    self._put(self._notice(dropped).encode())

    def _next(self) -> bytes:
        """Wait for a line, and return it with all that have come since."""
        lines = [self._queue.get()]
        try:
            while True:
                lines.append(self._queue.get_nowait())
        except Empty:
            return b"".join(lines)


def write_all(descriptor: int, data: bytes) -> None:
    """Write it, however long that takes, unless nobody can read it any more."""
    rest = memoryview(data)
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[_write_some(descriptor, rest) :]


def encoded(text: str) -> bytes:
    """Return the bytes of a line. What UTF-8 does not have is escaped."""
    return text.encode(errors="backslashreplace")


def _write_some(descriptor: int, data: memoryview) -> int:
    try:
        return os.write(descriptor, data)
    except BlockingIOError:  # somebody else, such as a shell, has made it non-blocking
        sleep(_RETRY_SECONDS)
        return 0
