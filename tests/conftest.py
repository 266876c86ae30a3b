"""Real servers for tests: `lmi serve` in a process of its own, on a free port of the loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import requests


class Server:
    """A running `lmi serve`. `log` is what it has written to standard error."""

    def __init__(self, directory: Path, properties: str, *arguments: str, environ: dict[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "serving.properties").write_text(properties)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = directory.name
        self._log_path = directory / "stderr.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("LMI_", "OPTION_", "SERVING_"))}
        command = [sys.executable, "-m", "lmi_handlers.cli", "serve", "--model-dir", str(directory)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *arguments]
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=clean | (environ or {}))

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def wait_ready(self, timeout: float = 120.0) -> Server:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.log}")
            with contextlib.suppress(requests.ConnectionError):
                if self.ping().status_code == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"server not ready within {timeout} s:\n{self.log}")

    def ping(self) -> requests.Response:
        return requests.get(f"{self.url}/ping", timeout=5)

    def invoke(self, body: object = None, *, path: str = "/invocations", **options: object) -> requests.Response:
        options.setdefault("timeout", 60)
        return requests.post(self.url + path, json=body, **options)  # type: ignore[arg-type]  # requests' own keywords

    def engine(self) -> psutil.Process:
        """The engine process that runs now."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "lmi_handlers.engine.process" in child.cmdline():
                return child
        raise AssertionError("no engine process runs")

    def web_worker(self) -> psutil.Process:
        """The first web worker."""
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "lmi_handlers.engine.supervisor" not in child.cmdline())

    def stop(self, timeout: float = 40.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


StartServer = Callable[..., Server]


@pytest.fixture()
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers that end with the test; `start_server(properties, *arguments)`."""
    servers: list[Server] = []

    def start(properties: str, *arguments: str, ready: bool = True, environ: dict[str, str] | None = None) -> Server:
        server = Server(tmp_path / f"m{len(servers)}", properties, *arguments, environ=environ)
        servers.append(server)
        return server.wait_ready() if ready else server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def echo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the echo backend whose prompts may ask for faults; for tests that leave it as they found it."""
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\nmax_request_size=1048576\n"
    server = Server(tmp_path_factory.mktemp("echo") / "m", properties, "--local-runtime")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the real small model, in float32."""
    server = Server(tmp_path_factory.mktemp("smollm2") / "smollm2", "option.rolling_batch=scheduler\noption.dtype=fp32\n")
    yield server.wait_ready(timeout=300)
    server.stop()
