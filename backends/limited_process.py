"""A child process for what may take all memory, run for ever or crash. A library's thread can be neither stopped nor limited.

The child sets itself up once and answers each question in a fork, under limits of memory and of processor time: one that
comes to an end so costs the next question nothing. Processor time, as how long a thing takes by the clock is also up to
everything else that runs.

Both ways go frames, a length of 4 bytes, big-endian, and so many bytes; the first is what the child sets itself up with.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

NICENESS = 5
"""A question gets a quarter of a core while the engine keeps all of them busy: 10 s of a processor take 40 s at most."""

PATIENCE = 300.0
"""Seconds by the clock for one question: far more than it needs, as it gets little of a core while the engine is busy."""

_LENGTH = struct.Struct(">I")
_SECONDS = struct.Struct(">d")
_ANSWERED, _EXPIRED = b"\0", b"\1"
_PR_SET_PDEATHSIG = 1


class Ended(Exception):
    """The child has ended instead of answering, as it has where it runs out of memory."""


class Expired(Ended):
    """The question has taken all of its processor time."""


class Stalled(Ended):
    """The child has not had its processor time within reason: the machine is too busy."""


class LimitedProcess:
    """The parent's side: `python -m module`, started for the first question and again after it has ended. For one thread."""

    def __init__(self, module: str, setup: bytes = b"", *, patience: float = PATIENCE) -> None:
        self._module = module
        self._setup = setup
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def ask(self, question: bytes, *, seconds: float) -> bytes:
        """Return the answer, which may take so many seconds of a processor.

        Raises `Ended`, and `RuntimeError` where the child does not even start.
        """
        process = self._process or self._start()
        with _Deadline(process, self._patience) as deadline:
            answer = _exchange(process, _SECONDS.pack(seconds), question)
        if answer is None:
            self.close()
            raise Stalled("took too long by the clock") if deadline.passed else Ended("died")
        if answer[:1] == _EXPIRED:
            raise Expired("took too much processor time")
        return answer[1:]

    def kill(self) -> None:
        """Let `ask` end, whatever it is at, now and from now on; any thread may call it."""
        self._killed = True
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
        if self._killed:
            process.kill()
        with _Deadline(process, self._patience):
            started = _exchange(process, self._setup)
        if started is None:
            self.close()
            raise RuntimeError(f"{self._module} does not start")
        return process


class _Deadline:
    """Kills a process whose time by the clock is over."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.passed = False
        self._process = process
        self._timer = threading.Timer(seconds, self._pass)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _pass(self) -> None:
        self.passed = True
        self._process.kill()


def serve(prepare: Callable[[bytes], Callable[[bytes], bytes]], *, memory: int) -> None:
    """The child's side: answer on the standard streams until there is no more to read.

    `prepare` gets the setup and returns what answers one question; `memory` is how many bytes a question may then take,
    where the kernel heeds that.
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
    while (seconds := _read(questions)) is not None and (question := _read(questions)) is not None:
        server = os.getpid()
        fork = os.fork()
        if fork == 0:
            _answer(server, lambda: answer(question), _SECONDS.unpack(seconds)[0], answers)
        _, status = os.waitpid(fork, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            _write(answers, _EXPIRED)
        elif status != 0:
            return


def _answer(server: int, answer: Callable[[], bytes], seconds: float, answers: IO[bytes]) -> None:
    """The fork's whole life. The kernel ends it at its limit, whatever library it is in."""
    status = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # which has died before that
                return
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        data = answer()
        signal.setitimer(signal.ITIMER_PROF, 0)  # an answer is whole
        _write(answers, _ANSWERED, data)
        status = 0
    finally:
        os._exit(status)


def _exchange(process: subprocess.Popen[bytes], *frames: bytes) -> bytes | None:
    """Return the child's answer, None where it has ended instead."""
    assert process.stdin is not None  # noqa: S101  the type of a pipe that was asked for
    assert process.stdout is not None  # noqa: S101
    try:
        for frame in frames:
            _write(process.stdin, frame)
    except BrokenPipeError:
        return None
    return _read(process.stdout)


def _write(stream: IO[bytes], *parts: bytes) -> None:
    """Write one frame."""
    stream.write(_LENGTH.pack(sum(map(len, parts))))
    for part in parts:
        stream.write(part)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """Return the next frame, None where the other side has ended, maybe in the midst of one."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None
