"""A child process for what may take all memory, or for ever, or the process along: it is ended, and asked again next time.

A library's thread can be neither stopped nor limited. Both ways go frames, a length of 4 bytes, big-endian, and so many bytes;
the first question is what the child sets itself up with.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

NICENESS = 10
"""Leaves a tenth of a core where the engine wants them all."""

_LENGTH = struct.Struct(">I")


class Ended(Exception):
    """The child has ended instead of answering; `expired` where it took too long."""

    def __init__(self, *, expired: bool) -> None:
        super().__init__("took too long" if expired else "died")
        self.expired = expired


class LimitedProcess:
    """The parent's side: `python -m module`, started for the first question and again after it has ended. For one thread."""

    def __init__(self, module: str, setup: bytes = b"") -> None:
        self._module = module
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: bytes, *, seconds: float) -> bytes:
        """Return the answer. Raises `Ended`, and `RuntimeError` where the child does not even start."""
        process = self._process or self._start()
        expired = threading.Event()

        def give_up() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.start()
        try:
            answer = _exchange(process, question)
        finally:
            timer.cancel()
        if answer is None:
            self.close()
            raise Ended(expired=expired.is_set())
        return answer

    def kill(self) -> None:
        """Let `ask` end, whatever it is at; any thread may call it."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # Closes the pipes, with what is left in them, and waits.
            with contextlib.suppress(BrokenPipeError), process:
                pass

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a library's last words; the client gets the cause
        )
        if _exchange(process, self._setup) is None:
            self.close()
            raise RuntimeError(f"{self._module} does not start")
        return process


def serve(prepare: Callable[[bytes], Callable[[bytes], bytes]], *, memory: int) -> None:
    """The child's side: answer on the standard streams until there is no more to read.

    `prepare` is called with the parent's setup, and what it returns with each question; `memory` is how many bytes it may then
    take, where the kernel heeds that.
    """
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    setup = _read(questions)
    if setup is None:
        return
    answer = prepare(setup)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _write(answers, b"")
    while (question := _read(questions)) is not None:
        _write(answers, answer(question))


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> bytes | None:
    """Return the child's answer, None where it has ended instead."""
    assert process.stdin is not None  # noqa: S101  the type of a pipe that was asked for
    assert process.stdout is not None  # noqa: S101
    try:
        _write(process.stdin, question)
    except BrokenPipeError:
        return None
    return _read(process.stdout)


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """Return the next frame, None where the other side has ended, maybe in the midst of one."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None
