"""Keeps one engine process running: starts it, kills it if it hangs, restarts it with back-off, gives up in the end."""

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

from lmi_handlers.engine.heartbeat import Heartbeat, HeartbeatReader
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings, read_line
from lmi_handlers.log import configure_logging, tell

_FIRST_BACK_OFF = 0.5
_LOOK_INTERVAL = 0.1
_OWN_GAP = 2.0
"""If this process did not run for this many seconds (in a paused container, say), neither could the engine."""

_KILL_TIMEOUT = 30.0
"""If an engine still exists this many seconds after SIGKILL, it is stuck in the kernel (in a driver, for example)."""

logger = logging.getLogger("lmi_handlers.engine.supervisor")  # __name__ is "__main__" here


class Restarts:
    """Decides whether and when a dead engine may be restarted: at most `limit` times within `window` seconds."""

    def __init__(self, limit: int, window: float) -> None:
        self._limit = limit
        self._window = window
        self._deaths: deque[float] = deque()

    def after_death(self, now: float) -> float | None:
        """Return the number of seconds to wait before the next start, or None to give up."""
        while self._deaths and now - self._deaths[0] > self._window:
            self._deaths.popleft()
        if len(self._deaths) >= self._limit:
            return None
        self._deaths.append(now)
        return float(_FIRST_BACK_OFF * 2 ** (len(self._deaths) - 1))


class EngineStays(Exception):
    """An engine still exists after it was killed."""


class Supervisor:
    """Runs engines, one at a time.

    The engine reads from a pipe that this process holds open, and ends when the pipe closes, however this process ends.
    The engine leads its own process group, which is killed with it.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._properties = settings.properties
        self._heartbeat = HeartbeatReader(settings.heartbeat_path)
        self._engine: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._ended_for: str | None = None
        """Why this process has killed the latest engine. None if it has not."""

    def run(self) -> int:
        """Run engines until another start makes no sense. Returns the server's exit status.

        An error in the model or an option is only final if no engine has loaded before. After that, it probably means a
        file that is missing for a moment, or a device that has not recovered yet.
        """
        properties = self._properties
        restarts = Restarts(properties.restart_limit, properties.restart_window)
        has_loaded = False
        while True:
            try:
                status = self._run_engine()
            except EngineStays as error:
                tell("error", f"{error}; giving up")
                return 1
            has_loaded = has_loaded or self._heartbeat.serving
            if status == EXIT_CONFIG and not has_loaded:
                return status
            delay = restarts.after_death(time.monotonic())
            last = self._ended_for or _describe(status)
            phase = None if self._heartbeat.serving else self._heartbeat.load_phase.value
            logger.error("engine process ended", extra={"status": last, "phase": phase, "restart_in": delay})
            if delay is None:
                tell(
                    "error",
                    f"the engine died {properties.restart_limit + 1} times "
                    f"in {properties.restart_window:g} s (last: {last}); giving up",
                )
                return 1
            time.sleep(delay)
            self._settings = msgspec.structs.replace(self._settings, started=time.monotonic())

    def end_engine(self) -> None:
        """Kill the running engine, which may not be able to notice that its parent is gone. Starts no engine again."""
        self._starting.acquire()
        if self._engine is not None:
            _end_group(self._engine.pid)

    def _run_engine(self) -> int:
        """Start an engine, wait until it ends or kill it, and return its exit status. Raises `EngineStays`."""
        self._ended_for = None
        Heartbeat.create(self._settings.heartbeat_path)  # a dead engine's must not be mistaken for the new one's
        command = [sys.executable, "-m", self._settings.module]
        with self._starting:
            self._engine = engine = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert engine.stdin is not None  # noqa: S101  follows from stdin=PIPE
        try:
            with contextlib.suppress(BrokenPipeError):  # the engine has ended already; its exit status says why
                engine.stdin.write(msgspec.json.encode(self._settings) + b"\n")
                engine.stdin.flush()
            return self._wait(engine)
        finally:
            _end_group(engine.pid)
            with contextlib.suppress(BrokenPipeError):
                engine.stdin.close()

    def _wait(self, engine: subprocess.Popen[bytes]) -> int:
        properties = self._properties
        started = since = looked = time.monotonic()
        while True:
            time.sleep(_LOOK_INTERVAL)
            if (status := engine.poll()) is not None:
                return status
            now = time.monotonic()
            if now - looked > _OWN_GAP:
                since = now
            looked = now
            if self._heartbeat.serving:
                if cause := self._heartbeat.stall(properties.stall_timeout, since=since):
                    logger.critical("engine is stalled; killing it", extra={"cause": cause})
                    self._ended_for = f"it was stalled and was killed: {cause}"
                    return _kill(engine)
            elif now - started > properties.model_loading_timeout:
                self._ended_for = (
                    f"loading took longer than model_loading_timeout ({properties.model_loading_timeout:g} s), "
                    f"the last phase was {self._heartbeat.load_phase.value!r}"
                )
                tell("error", self._ended_for)
                _kill(engine)
                return EXIT_CONFIG


def _kill(engine: subprocess.Popen[bytes]) -> int:
    """Kill an engine and return its exit status. Raises `EngineStays`."""
    _end_group(engine.pid)
    try:
        return engine.wait(_KILL_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise EngineStays(
            f"the engine process (pid {engine.pid}) still exists {_KILL_TIMEOUT:g} s after SIGKILL: it is stuck in the kernel"
        ) from error


def _end_group(leader: int) -> None:
    """Kill the engine's process group, so that none of its worker processes outlives it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the latter if only zombies are left
        os.killpg(leader, signal.SIGKILL)


def _describe(status: int) -> str:
    if status in (EXIT_CONFIG, EXIT_LOAD_FAILED):
        return f"exit status {status}; it did not load"
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name
    return f"{name}; was it out of memory?" if name == "SIGKILL" else name


def main() -> int:
    """Entry point of `python -m lmi_handlers.engine.supervisor`, a child of gunicorn's arbiter.

    Reads its settings on standard input. After giving up, it tells the arbiter to shut down. The arbiter's `on_exit`
    hook sets the exit status.
    """
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # requests in flight must finish first; then the pipe closes
    parent = os.getppid()
    settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=EngineSettings)
    supervisor = Supervisor(settings)
    threading.Thread(target=_end_with_parent, args=(supervisor,), daemon=True).start()
    status = supervisor.run()
    settings.failure_path.write_text(str(status))
    os.kill(parent, signal.SIGTERM)
    return status


def _end_with_parent(supervisor: Supervisor) -> None:
    """Kill the engine and exit when standard input ends, because the arbiter and all its workers are gone."""
    while os.read(sys.stdin.fileno(), 1024):  # not `sys.stdin`, whose lock would interfere with this process's exit
        pass
    supervisor.end_engine()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
