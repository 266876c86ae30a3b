"""Stands between the standard error of all processes of a server and whoever reads that, who may be slow or gone.

The processes inherit a pipe, which is always read, so that nothing that writes to the log waits for its reader: neither
our own lines nor what a model's code prints. A crash in native code still gets its last words out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from _thread import start_new_thread  # not gevent's, as in line_writer
from collections.abc import Callable
from time import monotonic, sleep

from lmi_handlers.core.line_writer import LineWriter

_PIPE_SIZE = 1024 * 1024
"""Bytes that may wait for this process to run. Linux's limit for users without privileges."""

_READ_SIZE = 64 * 1024

_REST_SECONDS = 0.2
"""Seconds after which the beginning of a line is passed on, such as that of a progress bar."""

_ENDS = 2.0
"""Seconds that the end of the server waits for its last lines to be read."""

_LOOK_SECONDS = 0.005


class LogRelay:
    """Makes standard error a pipe for this process and those that it starts from now on, and passes on what they write.

    `notice` renders the line that stands in place of so many lines that were dropped, and `count` is told their number.
    """

    def __init__(self, descriptor: int, notice: Callable[[int], str], count: Callable[[int], object]) -> None:
        self._descriptor = descriptor
        self._reader = os.dup(descriptor)
        self._input, output = os.pipe()
        with contextlib.suppress(OSError, AttributeError):  # not Linux, or not as much
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        os.dup2(output, descriptor)
        os.close(output)
        self._writer = LineWriter(self._reader, notice, count)
        self._is_reading = False
        self._rest = b""
        self._has_ended = False
        os.register_at_fork(after_in_child=self._leave)
        self._start()

    def _start(self) -> None:
        """Start the thread. It blocks all signals, also for the writer's: they are the main thread's, even if it blocks them."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def end(self) -> None:
        """Pass on what has been written, and give this process its standard error back. Waits no longer than a moment."""
        if self._has_ended:
            return
        self._has_ended = True
        self.restore()
        deadline = monotonic() + _ENDS
        while (self._events(0) & select.POLLIN or self._is_reading or self._rest) and monotonic() < deadline:
            sleep(_LOOK_SECONDS)
        self._writer.flush(max(0, deadline - monotonic()))

    def restore(self) -> None:
        """Give this process its standard error back, before it becomes another program."""
        os.dup2(self._reader, self._descriptor)

    def _leave(self) -> None:
        """In a fork: only the parent reads, so that the pipe breaks with it and nobody waits for a dead reader."""
        if not self._has_ended:
            self._has_ended = True
            os.close(self._input)

    def _run(self) -> None:
        while True:
            if not self._events(_REST_SECONDS if self._rest else None):
                self._writer.write(self._rest)
                self._rest = b""
                continue
            self._is_reading = True
            data = os.read(self._input, _READ_SIZE)
            lines, end, self._rest = (self._rest + data).rpartition(b"\n")
            if not data or len(self._rest) >= _READ_SIZE:  # nobody writes any more, or a line without end
                lines, end, self._rest = lines + end, self._rest, b""
            self._writer.write(lines + end)
            self._is_reading = False
            if not data:
                return

    def _events(self, seconds: float | None) -> int:
        """Wait until there is something to read, or nobody writes any more. Returns 0 if the time is up before."""
        poll = select.poll()
        poll.register(self._input, select.POLLIN)
        return sum(event for _, event in poll.poll(None if seconds is None else seconds * 1000))
