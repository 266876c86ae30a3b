"""Keeps one engine process running: starts it, starts it again with back-off when it dies, gives up when that does not help."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque

import msgspec

from lmi_handlers.engine.settings import EXIT_CONFIG, EngineSettings, read_line
from lmi_handlers.log import configure_logging

_FIRST_BACK_OFF = 0.5

logger = logging.getLogger("lmi_handlers.engine.supervisor")  # __name__ is "__main__" here


class Restarts:
    """Decides whether, and after how many seconds, an engine that died may start again: `limit` times in `window` seconds."""

    def __init__(self, limit: int, window: float) -> None:
        self._limit = limit
        self._window = window
        self._deaths: deque[float] = deque()

    def after_death(self, now: float) -> float | None:
        """Return the seconds to wait before the next start, or None to give up."""
        while self._deaths and now - self._deaths[0] > self._window:
            self._deaths.popleft()
        if len(self._deaths) >= self._limit:
            return None
        self._deaths.append(now)
        return float(_FIRST_BACK_OFF * 2 ** (len(self._deaths) - 1))


def supervise(settings: EngineSettings) -> int:
    """Run engines until this process is told to stop (returns 0) or no further start makes sense (returns an exit status).

    The engine's standard input is its lifeline: it ends when this process does, however that comes about. It leads a process
    group of its own, which ends with it.
    """
    properties = settings.properties
    restarts = Restarts(properties.restart_limit, properties.restart_window)
    line = msgspec.json.encode(settings) + b"\n"
    while True:
        command = [sys.executable, "-m", "lmi_handlers.engine.process"]
        engine = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert engine.stdin is not None  # noqa: S101  follows from stdin=PIPE
        engine.stdin.write(line)
        engine.stdin.flush()
        status = engine.wait()
        engine.stdin.close()
        _end_group(engine.pid)
        if status == EXIT_CONFIG:
            return status
        delay = restarts.after_death(time.monotonic())
        logger.error("engine process ended", extra={"status": _describe(status), "restart_in": delay})
        if delay is None:
            print(
                f"lmi: error: the engine died {properties.restart_limit + 1} times "
                f"in {properties.restart_window:g} s (last: {_describe(status)}); giving up",
                file=sys.stderr,
                flush=True,
            )
            return 1
        time.sleep(delay)


def _end_group(leader: int) -> None:
    """End what a dead engine has left: a worker of its own that waits for another in a tight loop would do so for ever."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter where only zombies are left
        os.killpg(leader, signal.SIGKILL)


def _describe(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name
    return f"{name}; was it out of memory?" if name == "SIGKILL" else name


def main() -> int:
    """Entry of `python -m lmi_handlers.engine.supervisor`, a child of gunicorn's arbiter. Settings come on standard input.

    When there is nothing left to try, the arbiter is told to shut down; its exit status is set by its `on_exit` hook.
    """
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is in flight must end first; the arbiter's pipe says when
    parent = os.getppid()
    settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=EngineSettings)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    status = supervise(settings)
    settings.failure_path.write_text(str(status))
    os.kill(parent, signal.SIGTERM)
    return status


def _end_with_parent() -> None:
    """Standard input ends when the arbiter and all its workers are gone; the engine ends with this process."""
    while os.read(sys.stdin.fileno(), 1024):  # not through `sys.stdin`, whose lock would disturb this process's end
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
