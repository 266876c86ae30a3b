"""The parent's side of a process that it keeps. `parent` is the other side.

Every kept process has the same parts:

* The command is a module of ours, run by `program`, which keeps the working directory off `sys.path`.
* The environment is the parent's. For processes that run or load a model, `environment` withholds credentials.
* Standard input is its pipe of life. The first line may be its settings, as JSON. Nothing else is written. The pipe
  closes when the parent ends, however that happens, and then the process and its group end (`end_with_parent`).
* It leads a process group of its own, which is killed with it, so that nothing that it has started outlives it.
* It ignores Ctrl-C and SIGTERM (`ignore_signals`): a terminal and a container send these to all processes, and the
  parent decides. A server, which finishes its requests first, is asked with a signal and has a grace period.
* Its exit status is said in the same words everywhere (`describe`).
* Whoever starts it again waits in between: `back_off`.

Starting and waiting block, so event loops leave both to threads (`custom_code/runner.py`). Web workers start none: gevent
would not know of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import IO, Any

import msgspec

from lmi_handlers.workers.program import command

KILL_TIMEOUT = 30.0
"""If a process still exists this many seconds after SIGKILL, it is stuck in the kernel (in a driver, for example)."""


class ProcessStays(Exception):
    """A process still exists after it was killed."""


class KeptProcess(subprocess.Popen[bytes]):
    """`python -m module`, which ends with this process.

    `settings` is its first line on standard input. Without a `group` of its own, it belongs to this process's group, and
    ends together with that. `environ` defaults to this process's environment. It inherits the descriptors `pass_fds`.
    Raises `OSError` if it cannot be started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        settings: msgspec.Struct | None = None,
        environ: Mapping[str, str] | None = None,
        group: bool = True,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        preexec_fn: Callable[[], object] | None = None,
        pass_fds: Collection[int] = (),
    ) -> None:
        super().__init__(
            command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=environ,
            preexec_fn=preexec_fn,
            pass_fds=pass_fds,
            start_new_session=group,
        )
        self._leads = group
        assert self.stdin is not None  # noqa: S101  follows from stdin=PIPE
        if settings is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit status says why
                self.stdin.write(msgspec.json.encode(settings) + b"\n")
                self.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the end of the process, whose input ends now."""
        self.close()
        super().__exit__(kind, error, traceback)

    def kill(self) -> None:
        """Kill the process, if it still runs, and the rest of its group."""
        if not self._leads:
            super().kill()
            return
        # It may be gone already. macOS raises PermissionError if only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, ask: signal.Signals | None = None, grace: float = 0.0) -> int:
        """End the process and the rest of its group, and return its exit status.

        If it is asked with a signal, it has `grace` seconds to end by itself. Raises `ProcessStays`.
        """
        if ask is not None:
            self.send_signal(ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace)
        self.kill()
        self.close()
        try:
            return self.wait(KILL_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise ProcessStays(
                f"process {self.pid} still exists {KILL_TIMEOUT:g} s after SIGKILL: it is stuck in the kernel"
            ) from error

    def close(self) -> None:
        """Close the pipes. A process that has not ended does so now."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of what is left in the buffer
                    pipe.close()


def describe(status: int) -> str:
    """Return how a process has ended: its exit status, or the signal that has killed it."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-status}"


def free_ports(number: int) -> list[int]:
    """Return different ports that nobody listens on now, for processes that cannot choose one themselves.

    All are held until the last one is known. If another program takes one first, the process does not start.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
