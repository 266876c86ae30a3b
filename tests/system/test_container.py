"""The server in a container as SageMaker runs it: read-only, no network, a small /tmp, any user, SIGTERM, SIGKILL after 30 s."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from container_server import MODEL_DIR, Image, host_image, require_containers
from facts import says
from serving import Server
from waiting import wait_until

pytestmark = pytest.mark.long

KILL_AFTER = 30.0
"""Seconds from SageMaker's SIGTERM to its SIGKILL."""

PING_TIMEOUT = 2.0
ECHO = "option.rolling_batch=echo\noption.max_model_len=8192\n"
READ_ONLY_HOME = "/opt/ml"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    require_containers(tmp_path_factory.mktemp("probe") / "root")
    return host_image()


StartContainer = Callable[..., Server]


@pytest.fixture
def start(image: Image, tmp_path: Path) -> Iterator[StartContainer]:
    """Start servers that are stopped after the test: `start(properties, user=..., **environ)`."""
    servers: list[Server] = []

    def start(properties: str, *, ready: bool = True, **options: Any) -> Server:
        servers.append(image.serve(tmp_path / "m", properties, **options))
        return servers[-1].wait_ready() if ready else servers[-1]

    yield start
    for server in servers:
        server.stop()


def stream(server: Server, max_new_tokens: int, started: list[str], ended: list[str]) -> None:
    """Read an answer. Its first line is added to `started`, its last one to `ended`."""
    body = {"inputs": "x" * max_new_tokens, "parameters": {"max_new_tokens": max_new_tokens}, "stream": True}
    lines = server.invoke(body, stream=True).iter_lines()
    started.append(next(lines).decode())
    *_, last = lines
    ended.append(last.decode())


@pytest.mark.parametrize(("user", "tokens", "ending"), [(0, 1000, '"error"'), (1000, 25, '"generated_text"')])
def test_the_server_stops_in_time_under_load(start: StartContainer, user: int, tokens: int, ending: str) -> None:
    """Answers that take too long end with an error record, others are completed. /ping answers in time meanwhile."""
    server = start(
        ECHO + "option.echo_tokens_per_second=5\n",
        user=user,
        port=9010,
        HOME=READ_ONLY_HOME,
        SAGEMAKER_BIND_TO_PORT="9010",
        SAGEMAKER_SAFE_PORT_RANGE="9011-9020",
    )
    started: list[str] = []
    ended: list[str] = []
    clients = [threading.Thread(target=stream, args=(server, tokens, started, ended)) for _ in range(32)]
    for client in clients:
        client.start()
    wait_until(lambda: len(started) == len(clients))
    pings = [requests.get(f"{server.url}/ping", timeout=PING_TIMEOUT).status_code for _ in range(10)]
    assert pings == [200] * len(pings)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(KILL_AFTER) == 0
    for client in clients:
        client.join(60)
    assert [ending in line for line in ended] == [True] * len(clients), ended[0]


def test_a_tmp_that_is_too_small_is_named(start: StartContainer) -> None:
    properties = "option.rolling_batch=openvino\noption.restart_limit=0\n"
    server = start(properties, user=0, tmp="200m", ready=False)
    assert server.process.wait(100) == 1
    assert says(server.log, "lmi: error: cannot written /tmp/ MiB left")


@pytest.mark.parametrize(
    ("model", "environ", "cause"),
    [
        ("file", {}, "/opt/ml/model not directory"),
        ("folder", {"SAGEMAKER_BIND_TO_PORT": "80"}, "0.0.0.0:80 Permission denied --host --port"),
        (
            "folder",
            {"SAGEMAKER_SAFE_PORT_RANGE": "any"},
            "SAGEMAKER_SAFE_PORT_RANGE any ports",
        ),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    image: Image, tmp_path: Path, model: str, environ: dict[str, str], cause: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "serving.properties").write_text(ECHO)
    mounts = {MODEL_DIR: tmp_path / model}
    done = image.run(tmp_path / "root", mounts, image.entry_point, "serve", user=1000, **environ)
    assert done.returncode == 1
    [line] = (done.stdout + done.stderr).splitlines()
    assert says(line, f"lmi: error: {cause}")
