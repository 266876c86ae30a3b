"""Keeps the process that runs a model's formatters running, beside the engine."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import tell
from lmi_handlers.engine.settings import EXIT_CONFIG, EXIT_LOAD_FAILED, EngineSettings
from lmi_handlers.workers.back_off import back_off
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.process import KeptProcess, describe

_MODULE = "lmi_handlers.custom_code.formatting.process"
_LOOK_INTERVAL = 0.05

_LATE = "loading the model's formatters did not end within {}"
_CRASHED = "loading the model's formatters ended their process with"
_ERROR = "lmi: error: "
"""The beginning of an error from `tell`."""

logger = logging.getLogger(__name__)


class FormattersProcess:
    """Starts the process, and starts it again whenever it ends: with back-off if it could not load the files.

    `give_up` is called if the first one could not. The process logs the reason unless it crashes.
    """

    def __init__(self, settings: EngineSettings, give_up: Callable[[], None]) -> None:
        self._settings = settings
        self._give_up = give_up
        self._stopping = threading.Event()
        self.serving = False
        """True if the process has loaded the files, and its socket is there."""
        self._thread = threading.Thread(target=self._run, name="formatters", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def needed(self) -> tuple[Path, ...]:
        """The files that must be there at the moment."""
        return (self._settings.formatter_socket_path,) if self.serving else ()

    def stop(self) -> None:
        """End the process, and start no other."""
        self._stopping.set()
        if self._thread.is_alive():  # not if it was never started
            self._thread.join()

    def _run(self) -> None:
        has_loaded, failures = False, 0
        while not self._stopping.is_set():
            self.serving = False
            settings = self._settings
            for path in (settings.formatter_socket_path, settings.formatter_changes_path, settings.formatter_hang_path):
                path.unlink(missing_ok=True)
            try:
                loaded, how = self._run_once(may_tell=not has_loaded)
            except OSError as error:  # no more processes, for example
                loaded, how = False, str(error)
                tell("error", f"the process that runs the model's formatters could not be started: {error}")
            if self._stopping.is_set():
                return
            if not (loaded or has_loaded):
                self._give_up()
                return
            has_loaded, failures = True, 0 if loaded else failures + 1
            delay = back_off(failures)
            extra = {"status": how, "restart_in": delay, "exception": self._where_it_hung()}
            logger.error("the process that runs the model's formatters has ended", extra=extra)
            self._stopping.wait(delay)

    def _run_once(self, *, may_tell: bool) -> tuple[bool, str]:
        """Run the process until it ends. Returns whether it has loaded the files, and how it has ended."""
        process = _start(self._settings)
        deadline = time.monotonic() + self._settings.properties.model_loading_timeout
        late = False
        while (status := process.poll()) is None:
            if self._stopping.wait(_LOOK_INTERVAL):
                process.kill()
            self.serving = self.serving or self._settings.formatter_socket_path.exists()
            if not self.serving and time.monotonic() > deadline:
                late = True
                process.kill()
        process.end()
        if (
            may_tell
            and not self.serving
            and not self._stopping.is_set()
            and status not in (EXIT_CONFIG, EXIT_LOAD_FAILED)
        ):
            tell("error", _LATE.format("model_loading_timeout") if late else f"{_CRASHED} {describe(status)}")
        return self.serving, describe(status)

    def _where_it_hung(self) -> str | None:
        """Return the stacks of a process that has not returned from a formatter, or None."""
        with contextlib.suppress(OSError):
            return self._settings.formatter_hang_path.read_text(errors="replace") or None
        return None


def check_loading(settings: EngineSettings, limit: str = "model_loading_timeout") -> None:
    """Load the files once, in a process of their own. Raises `ConfigError` if that fails.

    `limit` is the option with the seconds that it may take.
    """
    with tempfile.TemporaryFile() as log:
        process = _start(settings, "check", stderr=log)
        try:
            status = process.wait(getattr(settings.properties, limit))
        except subprocess.TimeoutExpired:
            raise ConfigError(_LATE.format(limit)) from None
        finally:
            process.end()
        log.seek(0)
        errors = [line for line in log.read().decode(errors="replace").splitlines() if line.startswith(_ERROR)]
    if status:
        raise ConfigError(errors[-1].removeprefix(_ERROR) if errors else f"{_CRASHED} {describe(status)}")


def _start(settings: EngineSettings, *arguments: str, stderr: IO[bytes] | None = None) -> KeptProcess:
    environ = child_environment(os.environ) | settings.labels
    return KeptProcess(_MODULE, *arguments, settings=settings, environ=environ, stderr=stderr)
