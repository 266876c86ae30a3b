"""A server of the job's own: `lmi serve` for a model directory, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.batch_transform.endpoint import ServerClient
from lmi_handlers.workers.process import KeptProcess, describe

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 30


@contextlib.contextmanager
def own_server(model_dir: Path | None) -> Iterator[str]:
    """Start a server, wait until it is ready, and yield its URL. It is stopped at the end.

    The server decides how long loading may take, and finds a model directory if there is none. Its log goes to standard
    error. Raises `ConfigError` if it ends by itself.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["lmi_handlers.commands.interruptible", "lmi_handlers.commands.cli", "serve"]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    if model_dir is not None:
        arguments += ["--model-dir", str(model_dir)]
    process = KeptProcess("lmi_handlers.workers.bound", *arguments, stdout=sys.stderr)
    try:
        endpoint = ServerClient(url)
        while not endpoint.is_ready():
            if process.poll() is not None:
                raise ConfigError(f"the server has ended with {describe(process.returncode)}")
            time.sleep(_POLL_SECONDS)
        yield url
    finally:
        process.end(signal.SIGQUIT, _GRACE_SECONDS)  # at once: nobody else waits for an answer


def _free_port() -> int:
    """Return a port that is free now. If another program takes it first, the server says so and ends."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
