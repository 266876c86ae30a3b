"""Starts the remote engine itself, on a Unix socket or on a port of the loopback interface, as `option.engine_command` says."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.process import KeptProcess, describe, free_ports

PORT, SOCKET = "{port}", "{socket}"
"""Stand for the port or for the path of the Unix socket in the command."""

_FOREIGN = "lmi_handlers.workers.foreign"
_STANDARD_ERROR = 2


def engine_command(text: str) -> list[str]:
    """Return the program and its arguments. No shell reads them. Raises `ConfigError`."""
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"option.engine_command cannot be split into words: {error}") from error
    if sum(any(place in word for word in command[1:]) for place in (PORT, SOCKET)) != 1:
        raise ConfigError(
            f"option.engine_command must have either {SOCKET} or {PORT} among its arguments: the engine must listen there"
        )
    if shutil.which(command[0]) is None:
        raise ConfigError(f"option.engine_command: there is no program {command[0]!r}")
    return command


class StartedEngine:
    """The engine as a process of ours. It writes to our log, and ends with this process, however that ends."""

    def __init__(self, command: list[str], environ: Mapping[str, str], folder: Path) -> None:
        """Start it with the variables of `environ` that it may have. Its socket is in `folder`. Raises `LoadFailed`."""
        self.socket: Path | None = None
        if any(SOCKET in word for word in command):
            # No longer than the names that `check_temporary_directory` leaves room for.
            self.socket = folder / f"r{os.getpid()}.sock"
            self.socket.unlink(missing_ok=True)
            self.url = "http://localhost"
            words = [word.replace(SOCKET, str(self.socket)) for word in command]
        else:
            [port] = free_ports(1)
            self.url = f"http://127.0.0.1:{port}"
            words = [word.replace(PORT, str(port)) for word in command]
        try:
            self._process = KeptProcess(
                _FOREIGN, *words, environ=child_environment(environ, gets_models=True), stdout=_STANDARD_ERROR
            )
        except OSError as error:
            raise LoadFailed(f"option.engine_command: it cannot be started: {error}") from error

    @property
    def end(self) -> str:
        """The end of the engine, in words, "" while it runs."""
        status = self._process.poll()
        return "" if status is None else describe(status)

    def check_loading(self) -> None:
        """Raise `ConfigError` if the engine has ended by itself, `LoadFailed` if it was killed, so that it is retried."""
        if self.end:
            kind = ConfigError if self._process.returncode >= 0 else LoadFailed
            raise kind(f"option.engine_command: the engine has ended while it was loading: {self.end}")

    def close(self) -> None:
        """Kill the engine and what it has started."""
        self._process.end()
        if self.socket is not None:
            self.socket.unlink(missing_ok=True)
