"""Servers that start a Ray of their own: a dozen processes, on this machine only."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import psutil
from serving import Server

PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
    "RAY_prestart_worker_first_driver": "0",
}
"""How long Ray waits for its own processes on a busy machine. Dead ones refuse connections, and are noticed as before.

Ray starts no workers before they are needed: those of our actors have variables of their own, and would not be these.
"""

_ATTEMPTS = 3
_RAY_GAVE_UP = ("timed out during startup", "HTTP proxies not available")
"""What nothing changes: Ray's agents have 15 s, its node 30 s, its proxies 60 s. The next attempt finds files cached."""


@contextlib.contextmanager
def started(start: Callable[[], Server], ending: signal.Signals = signal.SIGTERM) -> Iterator[Server]:
    """Yield a server that is ready. In the end, tell it to end, and kill what is left."""
    server, ray = _ready(start)
    try:
        yield server
    finally:
        try:
            if server.process.poll() is None:
                ray += _children(server)
                server.process.send_signal(ending)
            server.process.wait(180)
        finally:
            if server.process.poll() is None:  # HAProxy may have been replaced meanwhile
                ray += _children(server)
                server.process.kill()
                server.process.wait(30)
            _end(ray)


def _ready(start: Callable[[], Server], attempts: int = _ATTEMPTS) -> tuple[Server, list[psutil.Process]]:
    server = start()
    try:
        return server.wait_ready(400), _children(server)
    except AssertionError:
        if server.process.poll() is None:
            left = _children(server)
            server.process.kill()
            _end(left)
        server.process.wait(30)
        if attempts == 1 or not any(text in server.log for text in _RAY_GAVE_UP):
            raise
    return _ready(start, attempts - 1)


def _children(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def _end(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=5)
    for process in left:  # Ray's own agents look for their parent now and then
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
