"""A server of the program's own: `lmi serve` for a model directory, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.workers.process import KeptProcess, describe, free_ports

_POLL_SECONDS = 0.2
_PING_SECONDS = 30
_GRACE_SECONDS = 30


@contextlib.contextmanager
def own_server(
    model_dir: Path | None,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    log: IO[Any] | None = None,
) -> Iterator[str]:
    """Start `lmi serve` with these arguments, wait until it is ready, and yield its URL. It is stopped at the end.

    The server decides how long loading may take, and finds a model directory if there is none. Its log goes to standard
    error by default. `environ` defaults to this process's environment. Raises `ConfigError` if it ends by itself.
    """
    [port] = free_ports(1)
    command = ["lmi_handlers.commands.interruptible", "lmi_handlers.commands.cli", "serve"]
    command += ["--host", "127.0.0.1", "--port", str(port), *arguments]
    if model_dir is not None:
        command += ["--model-dir", str(model_dir)]
    output = sys.stderr if log is None else log  # standard output is the program's
    process = KeptProcess("lmi_handlers.workers.bound", *command, environ=environ, stdout=output, stderr=log)
    try:
        while not _is_ready(port):
            if process.poll() is not None:
                raise ConfigError(f"the server has ended with {describe(process.returncode)}")
            time.sleep(_POLL_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.end(signal.SIGQUIT, _GRACE_SECONDS)  # at once: nobody else waits for an answer


def _is_ready(port: int) -> bool:
    """Tell whether `/ping` is answered with 200."""
    with (
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_PING_SECONDS)) as connection,
        contextlib.suppress(OSError, http.client.HTTPException),
    ):
        connection.request("GET", "/ping")
        return connection.getresponse().status == http.HTTPStatus.OK
    return False
