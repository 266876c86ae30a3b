"""Runs code that may exhaust memory, hang or crash in a child process with limits.

The child sets itself up once and answers each question in a fork, so a question that reaches a limit costs the next one
nothing; after any other end the child starts again. The limit is processor time, because wall time also depends on other load.

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
_LIMITS = struct.Struct(">dd")
_PR_SET_PDEATHSIG = 1


class Ended(Exception):
    """There is no answer. This class itself: the child has crashed or was killed, which another attempt may survive."""


class Expired(Ended):
    """The question has taken all of its processor time."""


class Exhausted(Ended):
    """The question has taken all of its memory."""


class Stalled(Ended):
    """The child has not had its processor time within reason: the machine is too busy."""


# The first byte of what comes back.
_ANSWERED, _EXPIRED, _EXHAUSTED, _STALLED = (bytes([kind]) for kind in range(4))
_ENDS = {_EXPIRED: Expired, _EXHAUSTED: Exhausted, _STALLED: Stalled}
_LIMITS_REACHED = {
    signal.SIGPROF: _EXPIRED,
    signal.SIGALRM: _STALLED,
    signal.SIGABRT: _EXHAUSTED,  # libraries in Rust and C++ abort where Python raises `MemoryError`
}


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
        if self._process is not None and self._process.poll() is not None:  # has been killed since
            self.close()
        process = self._process or self._start()
        answer = _exchange(process, _LIMITS.pack(seconds, self._patience), question)
        if answer is None:
            self.close()
            raise Ended
        if answer[:1] != _ANSWERED:
            raise _ENDS[answer[:1]]
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
        deadline = threading.Timer(self._patience, process.kill)
        deadline.start()
        started = _exchange(process, self._setup)
        deadline.cancel()
        if started is None:
            self.close()
            raise RuntimeError(f"{self._module} does not start")
        return process


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
    while (limits := _read(questions)) is not None and (question := _read(questions)) is not None:
        server = os.getpid()
        fork = os.fork()
        if fork == 0:
            _answer(server, lambda: answer(question), _LIMITS.unpack(limits), answers)
        _, status = os.waitpid(fork, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in _LIMITS_REACHED:
            _write(answers, _LIMITS_REACHED[signal.Signals(os.WTERMSIG(status))])
        elif status != 0:  # maybe in the midst of its answer
            return


def _answer(server: int, answer: Callable[[], bytes], limits: tuple[float, ...], answers: IO[bytes]) -> None:
    """The fork's whole life. The kernel ends it at its limit, whatever library it is in."""
    status = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # which has died before that
                return
        timers = (signal.ITIMER_PROF, signal.ITIMER_REAL)
        for timer, ended_by, seconds in zip(timers, (signal.SIGPROF, signal.SIGALRM), limits, strict=True):
            signal.signal(ended_by, signal.SIG_DFL)
            signal.setitimer(timer, seconds)
        try:
            parts = _ANSWERED, answer()
        except MemoryError:
            parts = _EXHAUSTED, b""
        for timer in timers:
            signal.setitimer(timer, 0)  # an answer is whole
        _write(answers, *parts)
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
