"""The processes of one loaded model: its engines, and what runs its formatters. Its metrics are published from here."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lmi_handlers.core.errors import ConfigError, LMIError, LoadFailed
from lmi_handlers.engine.formatters_process import FormattersProcess
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings
from lmi_handlers.engine.supervisor import ShadowEngine, Supervisor, needed
from lmi_handlers.telemetry.publisher import close_publishers, metrics_publishers
from lmi_handlers.telemetry.settings import TelemetrySettings

_LOOK_INTERVAL = 0.05

logger = logging.getLogger(__name__)


class ModelProcesses:
    """One supervisor per engine, each in a thread. `on_failure` is called once all of them have given up."""

    def __init__(self, settings: EngineSettings, on_failure: Callable[[ModelProcesses], None]) -> None:
        self.settings = settings
        self.failure: LMIError | None = None
        self.publishers = metrics_publishers(
            TelemetrySettings.from_environ(os.environ), settings.metrics_dir, settings.properties.name
        )
        self._on_failure = on_failure
        self._supervisors = [Supervisor(replica) for replica in settings.each]
        self._formatters = None if settings.formatters is None else FormattersProcess(settings, self._fail)
        self._shadow = None if settings.shadow is None else ShadowEngine(settings.shadow, self._supervisors)
        self._threads = [
            threading.Thread(target=self._run, args=(supervisor,), daemon=True) for supervisor in self._supervisors
        ]
        self._running = len(self._supervisors)
        self._lock = threading.Lock()
        self._stopping = False

    def start(self) -> None:
        """Start the processes."""
        if self._formatters is not None:
            self._formatters.start()
        if self._shadow is not None:
            self._shadow.start()
        for thread in self._threads:
            thread.start()
        for publisher in self.publishers:
            publisher.start()

    def wait_serving(self) -> bool:
        """Wait until requests are accepted. Returns False if that will not happen."""
        while self.failure is None and not self._stopping:
            has_formatters = self._formatters is None or self._formatters.serving
            if has_formatters and any(supervisor.serving for supervisor in self._supervisors):
                return True
            time.sleep(_LOOK_INTERVAL)
        return False

    def needed(self) -> Iterator[Path]:
        """Yield the files that must be there at the moment."""
        return needed(self._supervisors, self._formatters)

    def stop(self) -> None:
        """End all processes. `on_failure` is not called any more."""
        self._stopping = True
        if self._formatters is not None:
            self._formatters.stop()
        if self._shadow is not None:
            self._shadow.stop()
        for supervisor in self._supervisors:
            supervisor.stop()
        for thread in self._threads:
            if thread.is_alive():  # not if it was never started
                thread.join()
        close_publishers(self.publishers)

    def kill(self) -> None:
        """End all engines at once, because this process exits. `on_failure` is not called, and `publishers` go on."""
        self._stopping = True
        for supervisor in self._supervisors:
            supervisor.end_engine()
        if self._shadow is not None:
            self._shadow.kill()

    def _run(self, supervisor: Supervisor) -> None:
        try:
            status, cause = supervisor.run(), supervisor.cause
        except Exception as error:  # no more processes or memory, for example
            logger.exception("an engine is not supervised any more", extra={"model": self.settings.model})
            status, cause = EXIT_LOAD_FAILED, str(error)
        with self._lock:
            self._running -= 1
            is_last = not self._running
        if is_last and not self._stopping:
            kind = ConfigError if status == EXIT_CONFIG else LoadFailed
            self._fail(kind(f"model {self.settings.model} could not be loaded: {cause}"))

    def _fail(self, failure: LMIError | None = None) -> None:
        self.failure = failure or ConfigError("the model's formatters could not be loaded; the log says why")
        if not self._stopping:
            self._on_failure(self)
