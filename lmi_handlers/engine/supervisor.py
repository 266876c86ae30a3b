"""Keeps one engine process running: starts it, kills it if it hangs, restarts it with back-off, gives up in the end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from lmi_handlers.core.log import configure_logging, tell
from lmi_handlers.engine.formatters_process import FormattersProcess
from lmi_handlers.engine.heartbeat import Heartbeat, HeartbeatReader, explain
from lmi_handlers.engine.runtime_folder import end_server, watch
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings
from lmi_handlers.telemetry.publisher import Publisher, close_publishers, metrics_publishers
from lmi_handlers.telemetry.settings import TelemetrySettings
from lmi_handlers.workers.back_off import Restarts, back_off
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.parent import ignore_signals, read_settings, wait_for_end_of_parent
from lmi_handlers.workers.process import KeptProcess, ProcessStays, describe

_LOOK_INTERVAL = 0.1
_SHADOW_FIRST = 60.0
"""Seconds after which a shadow engine that was given up is started again. Then twice as many each time."""
_SHADOW_LONGEST = 3600.0
_OWN_GAP = 2.0
"""If this process did not run for this many seconds (in a paused container, say), neither could the engine."""

_HINTS = {
    EXIT_CONFIG: "it did not load",
    EXIT_LOAD_FAILED: "it did not load",
    -signal.SIGKILL: "was it out of memory?",
}
"""Comments on exit statuses."""

logger = logging.getLogger("lmi_handlers.engine.supervisor")  # __name__ is "__main__" here


class Supervisor:
    """Runs engines, one at a time. No engine outlives this process."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._properties = settings.properties
        self._heartbeat = HeartbeatReader(settings.heartbeat_path, title=settings.title)
        self._engine: KeptProcess | None = None
        self._starting = threading.Lock()
        self._stopping = threading.Event()
        self._ended_for: str | None = None
        """The reason why this process has killed the latest engine. None if it has not."""
        self.cause = ""
        """The reason why `run` has given up."""

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
            except ProcessStays as error:
                self._give_up(f"{error}; giving up")
                return 1
            except OSError as error:  # no disk or no more processes, for example
                self._ended_for = f"it could not be started: {error}"
                status = EXIT_LOAD_FAILED
            if self._stopping.is_set():
                return 0
            has_loaded = has_loaded or self._heartbeat.serving
            if status == EXIT_CONFIG and not has_loaded:
                self.cause = self._ended_for or self._heartbeat.cause or _explained(status)
                return status
            delay = restarts.after_death(time.monotonic())
            last = self._ended_for or _explained(status)
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
            self._engine.kill()

    @property
    def serving(self) -> bool:
        """True if the engine has loaded."""
        return self._heartbeat.serving

    @property
    def needed(self) -> tuple[Path, ...]:
        """The files that web workers and the next engine need: while the engine serves, they must be there."""
        if not self.serving:
            return ()
        settings = self._settings
        bundle = () if settings.custom_code is not None else (settings.bundle_dir,)
        return (settings.heartbeat_path, settings.socket_path, settings.metrics_dir, *bundle)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._properties.name

    @property
    def bundle_dir(self) -> Path:
        """The directory with the text bundle of the engine, if it serves."""
        return self._settings.bundle_dir

    def stop(self) -> None:
        """Kill the running engine, and make `run` return."""
        self._stopping.set()
        with self._starting:
            if self._engine is not None and self._engine.returncode is None:
                self._engine.kill()

    def _give_up(self, cause: str) -> None:
        self.cause = cause
        tell("error", f"model {self._settings.model}: {cause}" if self._settings.model else cause)

    def _run_engine(self) -> int:
        """Start an engine, wait until it ends or kill it, and return its exit status. Raises `ProcessStays`."""
        self._ended_for = None
        Heartbeat.create(self._settings.heartbeat_path)  # a dead engine's must not be mistaken for the new one's
        with self._starting:
            if self._stopping.is_set():
                return 0
            self._engine = engine = KeptProcess(
                self._settings.module,
                settings=self._settings,
                environ=child_environment(os.environ, gets_models=True) | self._settings.environ,
            )
        try:
            return self._wait(engine)
        finally:
            engine.kill()
            engine.close()

    def _wait(self, engine: KeptProcess) -> int:
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
                    return engine.end()
            elif now - max(started, self._heartbeat.last_arrival) > self._settings.loading_limit:
                self._ended_for = (
                    f"loading took longer than model_loading_timeout ({properties.model_loading_timeout:g} s), "
                    f"the last phase was {self._heartbeat.load_phase.value!r}"
                )
                tell("error", self._ended_for)
                engine.end()
                return EXIT_CONFIG


class ShadowEngine:
    """Keeps the shadow engine of a model running, from the time that the model itself is served. Nothing depends on it.

    An engine that its supervisor has given up is started again, after longer and longer pauses.
    """

    def __init__(self, settings: EngineSettings, engines: Sequence[Supervisor]) -> None:
        """`engines` are the model's own."""
        self._settings = settings
        self._engines = engines
        self._supervisor: Supervisor | None = None
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the engine, and start no other."""
        self._end(Supervisor.stop)
        if self._thread.is_alive():  # not if it was never started
            self._thread.join()

    def kill(self) -> None:
        """Kill the engine at once, because this process exits."""
        self._end(Supervisor.end_engine)

    def _end(self, how: Callable[[Supervisor], None]) -> None:
        self._stopping.set()
        with self._changing:
            if self._supervisor is not None:
                how(self._supervisor)

    def _run(self) -> None:
        failures = 0
        while (bundle_dir := self._wait_for_model()) is not None:
            supervisor = Supervisor(
                msgspec.structs.replace(self._settings, started=time.monotonic(), shadow_of=str(bundle_dir))
            )
            with self._changing:
                if self._stopping.is_set():
                    return
                self._supervisor = supervisor
            try:
                Path(self._settings.runtime_dir).mkdir(mode=0o700, exist_ok=True)
                supervisor.run()
            except Exception:
                logger.exception("the shadow engine is not supervised any more")
            if self._stopping.is_set():
                return
            failures = 1 if supervisor.serving else failures + 1
            delay = back_off(failures, first=_SHADOW_FIRST, longest=_SHADOW_LONGEST)
            extra = {"model": self._engines[0].name, "cause": supervisor.cause, "restart_in": delay}
            logger.error("the shadow engine does not run", extra=extra)
            self._stopping.wait(delay)

    def _wait_for_model(self) -> Path | None:
        """Return the text bundle of an engine of the model's own that serves, or None if this is to end."""
        while not self._stopping.wait(_LOOK_INTERVAL):
            for engine in self._engines:
                if engine.serving:
                    return engine.bundle_dir
        return None


def _explained(status: int) -> str:
    hint = _HINTS.get(status)
    return f"{describe(status)}; {hint}" if hint else describe(status)


def main() -> int:
    """Entry point of `python -m lmi_handlers.engine.supervisor`, a child of gunicorn's arbiter.

    Reads its settings on standard input. Once it has given up on all replicas, it tells the arbiter to shut down. The
    arbiter's `on_exit` hook sets the exit status.
    """
    configure_logging()
    ignore_signals()  # requests in flight must finish first; then the pipe closes
    parent = os.getppid()
    settings = read_settings(EngineSettings)
    supervisors = [Supervisor(replica) for replica in settings.each]
    telemetry = TelemetrySettings.from_environ(os.environ)
    publishers = metrics_publishers(telemetry, settings.metrics_dir, settings.properties.name)
    for publisher in publishers:
        publisher.start()
    shadow = None if settings.shadow is None else ShadowEngine(settings.shadow, supervisors)
    end = threading.Thread(target=_end_with_parent, args=(supervisors, shadow, publishers), daemon=True)
    end.start()

    folder = Path(settings.runtime_dir)

    def give_up() -> None:
        end_server(folder, parent)

    formatters = None if settings.formatters is None else FormattersProcess(settings, give_up)
    watch(folder, lambda: needed(supervisors, formatters), give_up)
    if formatters is not None:
        formatters.start()
    if shadow is not None:
        shadow.start()
    with ThreadPoolExecutor(len(supervisors)) as threads:
        statuses = [*threads.map(Supervisor.run, supervisors)]
    if 0 in statuses:  # the arbiter is gone: the engines were stopped, and that thread ends this process
        end.join()
    if shadow is not None:
        shadow.kill()
    give_up()
    close_publishers(publishers)
    return max(statuses)


def needed(supervisors: Iterable[Supervisor], formatters: FormattersProcess | None) -> Iterator[Path]:
    """Yield the files that the processes of a model need at the moment."""
    for supervisor in supervisors:
        yield from supervisor.needed
    if formatters is not None:
        yield from formatters.needed


def _end_with_parent(
    supervisors: Iterable[Supervisor], shadow: ShadowEngine | None, publishers: Iterable[Publisher]
) -> None:
    """Kill the engines and exit when standard input ends, because the arbiter and all its workers are gone."""
    wait_for_end_of_parent()
    for supervisor in supervisors:
        supervisor.end_engine()
    if shadow is not None:
        shadow.kill()
    close_publishers(publishers)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
