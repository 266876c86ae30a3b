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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from lmi_handlers.core.back_off import back_off
from lmi_handlers.core.child_environment import child_environment
from lmi_handlers.core.log import configure_logging, tell
from lmi_handlers.core.program import command
from lmi_handlers.engine.companion import Companion
from lmi_handlers.engine.heartbeat import Heartbeat, HeartbeatReader, explain
from lmi_handlers.engine.runtime_folder import end_server, watch
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings, read_line
from lmi_handlers.telemetry.publisher import Publisher, close_publishers, metrics_publishers
from lmi_handlers.telemetry.settings import TelemetrySettings

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
        return back_off(len(self._deaths))


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
        self._heartbeat = HeartbeatReader(settings.heartbeat_path, title=settings.title)
        self._engine: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._stopping = threading.Event()
        self._ended_for: str | None = None
        """Why this process has killed the latest engine. None if it has not."""
        self.cause = ""
        """Why `run` has given up."""

    def run(self) -> int:
        """Run engines until another start makes no sense, or until `stop` is called. Returns the server's exit status.

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
                self._give_up(f"{error}; giving up")
                return 1
            except OSError as error:  # no disk or no more processes, for example
                self._ended_for = f"it could not be started: {error}"
                status = EXIT_LOAD_FAILED
            if self._stopping.is_set():
                return 0
            has_loaded = has_loaded or self._heartbeat.serving
            if status == EXIT_CONFIG and not has_loaded:
                self.cause = self._ended_for or self._heartbeat.cause or _describe(status)
                return status
            delay = restarts.after_death(time.monotonic())
            last = self._ended_for or _describe(status)
            if not self._heartbeat.cause:  # it could not say so itself
                explain(self._settings.heartbeat_path, last)
            phase = None if self._heartbeat.serving else self._heartbeat.load_phase.value
            logger.error(
                f"{self._settings.title} process ended",
                extra={
                    "model": properties.name,
                    "replica": self._settings.replica,
                    "status": last,
                    "phase": phase,
                    "restart_in": delay,
                },
            )
            if delay is None:
                self._give_up(
                    f"the {self._settings.title} died {properties.restart_limit + 1} times "
                    f"in {properties.restart_window:g} s (last: {self._heartbeat.cause or last}); giving up"
                )
                return 1
            self._stopping.wait(delay)
            self._settings = msgspec.structs.replace(self._settings, started=time.monotonic())

    def end_engine(self) -> None:
        """Kill the running engine, which may not be able to notice that its parent is gone. Starts no engine again."""
        self._stopping.set()  # its death is no failure
        self._starting.acquire()
        if self._engine is not None:
            _end_group(self._engine.pid)

    @property
    def serving(self) -> bool:
        """Whether the engine has loaded."""
        return self._heartbeat.serving

    @property
    def needed(self) -> tuple[Path, ...]:
        """The files that web workers and the next engine need: while the engine serves, they must be there."""
        if not self.serving:
            return ()
        settings = self._settings
        bundle = () if settings.custom_code is not None else (settings.bundle_dir,)
        return (settings.heartbeat_path, settings.socket_path, settings.metrics_dir, *bundle)

    def stop(self) -> None:
        """Kill the running engine, and make `run` return."""
        self._stopping.set()
        with self._starting:
            if self._engine is not None and self._engine.returncode is None:
                _end_group(self._engine.pid)

    def _give_up(self, cause: str) -> None:
        self.cause = cause
        tell("error", f"model {self._settings.model}: {cause}" if self._settings.model else cause)

    def _run_engine(self) -> int:
        """Start an engine, wait until it ends or kill it, and return its exit status. Raises `EngineStays`."""
        self._ended_for = None
        Heartbeat.create(self._settings.heartbeat_path)  # a dead engine's must not be mistaken for the new one's
        with self._starting:
            if self._stopping.is_set():
                return 0
            self._engine = engine = subprocess.Popen(
                command(self._settings.module),
                stdin=subprocess.PIPE,
                start_new_session=True,
                env=child_environment(os.environ, gets_models=True) | self._settings.environ,
            )
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
                    extra = {"model": properties.name, "cause": cause}
                    logger.critical(f"{self._settings.title} is stalled; killing it", extra=extra)
                    self._ended_for = f"it was stalled and was killed: {cause}"
                    return _kill(engine)
            elif now - max(started, self._heartbeat.last_arrival) > self._settings.loading_limit:
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
            f"process {engine.pid} still exists {_KILL_TIMEOUT:g} s after SIGKILL: it is stuck in the kernel"
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

    Reads its settings on standard input. Once it has given up on all replicas, it tells the arbiter to shut down. The
    arbiter's `on_exit` hook sets the exit status.
    """
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # requests in flight must finish first; then the pipe closes
    parent = os.getppid()
    settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=EngineSettings)
    supervisors = [Supervisor(replica) for replica in settings.each]
    telemetry = TelemetrySettings.from_environ(os.environ)
    publishers = metrics_publishers(telemetry, settings.metrics_dir, settings.properties.name)
    for publisher in publishers:
        publisher.start()
    end = threading.Thread(target=_end_with_parent, args=(supervisors, publishers), daemon=True)
    end.start()

    folder = Path(settings.runtime_dir)

    def give_up() -> None:
        end_server(folder, parent)

    companion = None if settings.formatters is None else Companion(settings, give_up)
    watch(folder, lambda: needed(supervisors, companion), give_up)
    if companion is not None:
        companion.start()
    with ThreadPoolExecutor(len(supervisors)) as threads:
        statuses = [*threads.map(Supervisor.run, supervisors)]
    if 0 in statuses:  # the arbiter is gone: the engines were stopped, and that thread ends this process
        end.join()
    give_up()
    close_publishers(publishers)
    return max(statuses)


def needed(supervisors: Iterable[Supervisor], companion: Companion | None) -> Iterator[Path]:
    """Yield the files that the processes of a model need at the moment."""
    for supervisor in supervisors:
        yield from supervisor.needed
    if companion is not None:
        yield from companion.needed


def _end_with_parent(supervisors: Iterable[Supervisor], publishers: Iterable[Publisher]) -> None:
    """Kill the engines and exit when standard input ends, because the arbiter and all its workers are gone."""
    while os.read(sys.stdin.fileno(), 1024):  # not `sys.stdin`, whose lock would interfere with this process's exit
        pass
    for supervisor in supervisors:
        supervisor.end_engine()
    close_publishers(publishers)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
