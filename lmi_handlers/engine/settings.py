"""What a new engine process is told, and the directory that it shares with the web workers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lmi_handlers.config.properties import ServingProperties

SOCKET_VARIABLE = "LMI_ENGINE_SOCKET"
"""Environment variable with the path of the engine's Unix socket; whoever finds it set does not start an engine."""

EXIT_CONFIG = 78
"""Exit status of an engine process whose model or options are wrong (sysexits' EX_CONFIG)."""

EXIT_LOAD_FAILED = 75
"""Exit status of an engine process that did not load, but may at the next try (sysexits' EX_TEMPFAIL)."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on an engine process's standard input, as JSON. `runtime_dir` is private to one server."""

    runtime_dir: str
    properties: ServingProperties

    @property
    def socket_path(self) -> Path:
        """Where workers connect."""
        return Path(self.runtime_dir) / "engine.sock"

    @property
    def bundle_dir(self) -> Path:
        """Where the text bundle goes."""
        return Path(self.runtime_dir) / "text"

    @property
    def metrics_dir(self) -> Path:
        """Where each process keeps its numbers."""
        return metrics_dir(self.socket_path)

    @property
    def heartbeat_path(self) -> Path:
        """Where the engine shows that it lives."""
        return heartbeat_path(self.socket_path)

    @property
    def failure_path(self) -> Path:
        """Exists once the supervisor has given up; holds the exit status for the whole server."""
        return Path(self.runtime_dir) / "failed"


def metrics_dir(socket_path: Path) -> Path:
    """Where the processes around the engine that listens on `socket_path` keep their numbers."""
    return socket_path.with_name("metrics")


def heartbeat_path(socket_path: Path) -> Path:
    """Where the engine that listens on `socket_path` shows that it lives."""
    return socket_path.with_name("heartbeat")


def read_line(descriptor: int) -> bytes:
    """Return the settings' line, and leave what follows it unread: nothing but the end, which tells that the parent is gone."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            raise SystemExit("this process expects its settings on standard input")
        line += chunk
    return line
