"""Fixtures: real servers, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from serving import Server, StartServer

# Machines that run tests are slow at times. CI takes the same examples each time: what fails there fails for everyone.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if "CI" in os.environ else "default")


@pytest.fixture
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
    properties = (
        "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\nmax_request_size=1048576\n"
    )
    server = Server(tmp_path_factory.mktemp("echo") / "m", properties, "--local-runtime")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the real small model, in float32."""
    properties = "option.rolling_batch=scheduler\noption.dtype=fp32\n"
    server = Server(tmp_path_factory.mktemp("model") / "smollm2", properties, "--local-runtime")
    yield server.wait_ready(timeout=300)
    server.stop()
