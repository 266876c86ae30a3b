"""Starts the remote engine itself, on a port of the loopback interface, as `option.engine_command` says."""

from __future__ import annotations

import shlex
import shutil
import socket
from collections.abc import Mapping

from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.process import KeptProcess, describe

PORT = "{port}"
"""Stands for the port in the command."""

_FOREIGN = "lmi_handlers.workers.foreign"
_STANDARD_ERROR = 2


def engine_command(text: str) -> list[str]:
    """Return the program and its arguments. No shell reads them. Raises `ConfigError`."""
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"option.engine_command cannot be split into words: {error}") from error
    if not command or not any(PORT in word for word in command[1:]):
        raise ConfigError(
            f"option.engine_command must have {PORT} among its arguments: the engine must listen on that port"
        )
    if shutil.which(command[0]) is None:
        raise ConfigError(f"option.engine_command: there is no program {command[0]!r}")
    return command


class StartedEngine:
    """The engine as a process of ours. It writes to our log, and ends with this process, however that ends."""

    def __init__(self, command: list[str], environ: Mapping[str, str]) -> None:
        """Start it with the variables of `environ` that it may have. Raises `LoadFailed`."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = [word.replace(PORT, str(port)) for word in command]
        try:
            self._process = KeptProcess(
                _FOREIGN, *words, environ=child_environment(environ, gets_models=True), stdout=_STANDARD_ERROR
            )
        except OSError as error:
            raise LoadFailed(f"option.engine_command: it cannot be started: {error}") from error
        self.url = f"http://127.0.0.1:{port}"

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
