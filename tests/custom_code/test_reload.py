"""`lmi serve --reload`: a model's own code is loaded again when it changes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from facts import says
from serving import ENVIRON, Server
from waiting import wait_until

SCRIPT = """import os, time
from djl_python import Output
from beside import VALUE


def handle(inputs):
    if inputs.is_empty():
        return None
    if inputs.get_as_string() == "slow":
        open("begun", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.05)
    return Output().add(f"1 {VALUE}")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("reload") / "m"
    directory.mkdir()
    (directory / "model.py").write_text(SCRIPT)
    (directory / "beside.py").write_text("VALUE = 'a'\n")
    server = Server(directory, "minWorkers=2\n", "--reload")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(autouse=True)
def unchanged(server: Server) -> Iterator[None]:
    yield
    (server.directory / "model.py").write_text(SCRIPT)
    (server.directory / "beside.py").write_text("VALUE = 'a'\n")
    wait_until(lambda: answers(server) == {"1 a"})


def call(server: Server, data: str = "x") -> requests.Response:
    return requests.post(f"{server.url}/invocations", data, timeout=60)


def answer(server: Server) -> str:
    return call(server).text


def answers(server: Server) -> set[str]:
    """Both processes' answers. A process that was to be started anyway has new code before the other is replaced."""
    return {answer(server) for _ in range(4)}


def test_a_changed_file_or_module_beside_it_is_loaded(server: Server) -> None:
    assert answer(server) == "1 a"
    (server.directory / "beside.py").write_text("VALUE = 'b'\n")
    wait_until(lambda: answer(server) == "1 b")
    assert answers(server) == {"1 b"}
    (server.directory / "model.py").write_text(SCRIPT.replace('f"1', 'f"2'))
    wait_until(lambda: answer(server) == "2 b")


def test_a_broken_file_is_shown_until_it_is_mended(server: Server) -> None:
    (server.directory / "model.py").write_text(SCRIPT + "\nnonsense\n")
    cause = f"{server.directory}/model.py, line 15: NameError: name 'nonsense' is not defined"
    wait_until(lambda: server.ping().status_code == 503)
    assert server.ping().json()["m"]["phase"] == cause
    refused = call(server)
    assert refused.status_code == 503
    assert f"the model is not ready: {cause}" in refused.json()["error"]
    time.sleep(1.5)
    assert call(server).status_code == 503
    (server.directory / "model.py").write_text(SCRIPT.replace('f"1', 'f"3'))
    wait_until(lambda: server.ping().status_code == 200)
    assert answer(server) == "3 a"


def test_requests_in_flight_finish(server: Server) -> None:
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(call, server, "slow")
        wait_until((server.directory / "begun").exists)
        (server.directory / "beside.py").write_text("VALUE = 'c'\n")
        wait_until(lambda: answer(server) == "1 c")
        (server.directory / "go").touch()
        assert slow.result().text == "1 a"


def test_changed_properties_need_a_restart(server: Server) -> None:
    with (server.directory / "serving.properties").open("a") as file:
        file.write("option.mine=1\n")
    wait_until(lambda: "serving.properties has changed: restart the server" in server.log)
    assert answer(server) == "1 a"


def test_an_engine_is_not_reloaded(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=echo\n")
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", "--model-dir", str(tmp_path), "--reload"]
    ended = subprocess.run(command, capture_output=True, text=True, env=ENVIRON, timeout=120, check=False)
    assert ended.returncode == 1
    assert says(ended.stderr, "--reload backend echo")
