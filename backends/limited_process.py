"""Runs code that may exhaust memory, hang or crash in a child process with limits.

The child sets itself up once and answers each question in a fork. So a question that reaches a limit does not affect
the next one. If the fork ends in any other way, the child is restarted. The limit is CPU time, because wall time also
depends on other load.

Both directions use frames: a length of 4 bytes, big-endian, followed by the data. The first frame is the child's setup.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO

from lmi_handlers.core.errors import RequestFailed
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.process import KeptProcess

NICENESS = 5
"""With all cores busy, a question still gets a quarter of one: 10 s of CPU time take at most 40 s."""

PATIENCE = 300.0
"""Wall time limit per question in seconds. It is generous, because a busy engine leaves little CPU time."""

_LENGTH = struct.Struct(">I")
_LIMITS = struct.Struct(">dd")
_PR_SET_PDEATHSIG = 1


class Ended(Exception):
    """There is no answer. If it is not a subclass, the child crashed or was killed, and a retry may help."""


class Expired(Ended):
    """The question has used up its CPU time."""


class Exhausted(Ended):
    """The question has reached its memory limit."""


class Stalled(Ended):
    """The child did not get enough CPU time in `patience` seconds, because the machine is too busy."""


# The first byte of an answer.
_ANSWERED, _EXPIRED, _EXHAUSTED, _STALLED = (bytes([kind]) for kind in range(4))
_ENDS = {_EXPIRED: Expired, _EXHAUSTED: Exhausted, _STALLED: Stalled}
_LIMITS_REACHED = {
    signal.SIGPROF: _EXPIRED,
    signal.SIGALRM: _STALLED,
    signal.SIGABRT: _EXHAUSTED,  # Rust and C++ libraries abort when they run out of memory
}


class LimitedProcess:
    """The parent's side. Runs `python -m module`.

    The child starts with the first question, and again after it has ended. Not thread-safe, except `kill`.
    """

    def __init__(self, module: str, setup: bytes = b"", *, patience: float = PATIENCE) -> None:
        self._module = module
        self._setup = setup
        self._patience = patience
        self._process: KeptProcess | None = None
        self._killed = False

    def ask(self, question: bytes, *, seconds: float) -> bytes:
        """Return the answer, which may take at most `seconds` of CPU time.

        Raises `Ended`, or `RuntimeError` if the child does not start.
        """
        if self._process is not None and self._process.poll() is not None:  # it was killed since the last question
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
        """Stop the current `ask` and all later ones. May be called from any thread."""
        self._killed = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _start(self) -> KeptProcess:
        process = self._process = KeptProcess(
            self._module,
            environ=child_environment(os.environ),
            group=False,  # so that a question does not outlive this process's group
            stdout=PIPE,
            stderr=DEVNULL,  # error messages of libraries; the client gets the cause
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


@contextlib.contextmanager
def request_failures(work: str, task: str) -> Iterator[None]:
    """Raise `RequestFailed` for errors of `ask`, except `Expired` and `Exhausted`, which the question has caused.

    `work` and `task` are for the message: for example, "decodes images" and "the image could not be decoded".
    """
    try:
        yield
    except (Expired, Exhausted):
        raise
    except Stalled as error:
        raise RequestFailed(f"{task} in time, as the server is busy") from error
    except Ended as error:
        raise RequestFailed(f"the process that {work} has died") from error
    except RuntimeError as error:
        raise RequestFailed(f"the process that {work} does not start") from error


def lower_priority() -> None:
    """Lower the priority of this thread, so that the engine loop gets the CPU first."""
    if sys.platform == "linux":  # the only platform with a priority per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def serve(prepare: Callable[[bytes], Callable[[bytes], bytes]], *, memory: int) -> None:
    """The child's side: answer questions on the standard streams until stdin is closed.

    `prepare` gets the setup and returns a function that answers one question. `memory` is how many bytes a question may
    take on top of that. This limit works on Linux only.
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
        elif status != 0:  # maybe in the middle of its answer
            return


def _answer(server: int, answer: Callable[[], bytes], limits: tuple[float, ...], answers: IO[bytes]) -> None:
    """Answer one question in the fork and exit. At a time limit the kernel kills it, whatever code it is running."""
    status = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # it died before the call above
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
            signal.setitimer(timer, 0)  # so that the answer is written completely
        _write(answers, *parts)
        status = 0
    finally:
        os._exit(status)


def _exchange(process: KeptProcess, *frames: bytes) -> bytes | None:
    """Return the child's answer, or None if the child has ended."""
    assert process.stdin is not None  # noqa: S101  for the type checker; it is a pipe
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
    """Return the next frame, or None if the other side has ended, possibly in the middle of a frame."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None
