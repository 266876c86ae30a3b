"""The settings of a new engine process, and the directory that it shares with the web workers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.properties import ServingProperties

SOCKET_VARIABLE = "LMI_ENGINE_SOCKET"
"""Environment variable with the path of the engine's Unix socket. If it is set, the server does not start an engine."""

EXIT_CONFIG = 78
"""Exit status of an engine process if the model or an option is wrong (EX_CONFIG in sysexits)."""

EXIT_LOAD_FAILED = 75
"""Exit status of an engine process if loading failed but another try may succeed (EX_TEMPFAIL in sysexits)."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on the engine process's standard input, as JSON. Each server has its own `runtime_dir`.

    `started` is when this load began, on the monotonic clock: when the server or, later, this engine was started. With
    `custom_code`, a pool of processes that run it takes the engine's place.
    """

    runtime_dir: str
    properties: ServingProperties
    started: float
    custom_code: CustomCode | None = None

    @property
    def module(self) -> str:
        """The program to start."""
        return "lmi_handlers.engine.process" if self.custom_code is None else "lmi_handlers.custom_code.pool"

    @property
    def socket_path(self) -> Path:
        """The socket that workers connect to."""
        return Path(self.runtime_dir) / "engine.sock"

    @property
    def bundle_dir(self) -> Path:
        return Path(self.runtime_dir) / "text"

    @property
    def metrics_dir(self) -> Path:
        """Directory of the files in which each process keeps its metrics."""
        return metrics_dir(self.socket_path)

    @property
    def heartbeat_path(self) -> Path:
        """File in which the engine shows that it is alive."""
        return heartbeat_path(self.socket_path)

    @property
    def failure_path(self) -> Path:
        """Exists once the server has given up on the engine. The server then exits with status 1."""
        return Path(self.runtime_dir) / "failed"


def metrics_dir(socket_path: Path) -> Path:
    """Return the metrics directory for the engine that listens on `socket_path`."""
    return socket_path.with_name("metrics")


def heartbeat_path(socket_path: Path) -> Path:
    """Return the heartbeat file of the engine that listens on `socket_path`."""
    return socket_path.with_name("heartbeat")


def read_line(descriptor: int) -> bytes:
    """Return the line with the settings. The end-of-file that follows once the parent is gone is left unread."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            raise SystemExit("this process expects its settings on standard input")
        line += chunk
    return line
