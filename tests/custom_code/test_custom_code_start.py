"""What `lmi serve` and `lmi check` say about a model's own code before and while it starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from serving import ENVIRON, Server
from waiting import wait_until

HANDLER = "def handle(inputs):\n    return None\n"


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def check(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmi_handlers.cli", "check", "--model-dir", str(directory)]
    return subprocess.run(
        command, capture_output=True, text=True, env=ENVIRON, cwd=directory.parent, timeout=60, check=False
    )


def test_check_says_what_will_run(tmp_path: Path) -> None:
    properties = "option.mine=1\noption.dtype=fp16\nminWorkers=2\n"
    ended = check(write(tmp_path / "m", {"model.py": HANDLER, "serving.properties": properties}))
    assert ended.returncode == 0, ended.stderr
    assert f"Model m by its own code: {tmp_path}/m/model.py defines handle(inputs)" in ended.stdout
    assert "passed on to model.py" in ended.stdout
    assert "no effect on" not in ended.stdout


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"model.py": HANDLER, "formatters.py": ""}, "{}/formatters.py must have another name"),
        ({"model.py": HANDLER, "djl_python/__init__.py": ""}, "{}/djl_python must have another name"),
        ({"model.py": "def handle(\n"}, "{}/model.py, line 1: SyntaxError: '(' was never closed"),
        ({"serving.properties": "option.entryPoint=mine.py\n"}, "option.entryPoint=mine.py: {}/mine.py does not exist"),
        (
            {"serving.properties": "option.entryPoint=mine.py\n", "mine.py": "x = 1\n"},
            "option.entryPoint=mine.py: {}/mine.py defines no function handle(inputs)",
        ),
    ],
)
def test_mistakes_that_need_no_import(tmp_path: Path, files: dict[str, str], error: str) -> None:
    ended = check(write(tmp_path / "m", files))
    assert ended.returncode == 1
    assert error.format(tmp_path / "m") in ended.stderr


def test_check_does_not_import_the_code(tmp_path: Path) -> None:
    script = "open('imported', 'w')\n" + HANDLER
    assert check(write(tmp_path / "m", {"model.py": script})).returncode == 0
    assert not (tmp_path / "m" / "imported").exists()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("import json\nimport not_installed_here\n" + HANDLER, "line 2: ModuleNotFoundError: No module named 'not_in"),
        ("def handle(inputs):\n    return unknown\n", "line 2: NameError: name 'unknown' is not defined"),
        ("import sys\nsys.exit(2)\n" + HANDLER, "line 2: SystemExit: 2"),
        ("import os\nos._exit(2)\n" + HANDLER, "its process ended with status 2 while it was loaded"),
        ("def handle(inputs):\n    return 'text'\n", "Invalid output type: <class 'str'>"),
    ],
)
def test_code_that_does_not_load_ends_the_server_with_file_and_line(
    tmp_path: Path, servers: list[Server], script: str, error: str
) -> None:
    server = Server(write(tmp_path / "m", {"model.py": script}), "")
    servers.append(server)
    assert server.process.wait(60) == 1
    (line,) = [line for line in server.log.splitlines() if line.startswith("lmi: error: ")]
    assert f"{tmp_path}/m/model.py" in line
    assert error in line


def test_ping_says_what_is_being_loaded(tmp_path: Path, servers: list[Server]) -> None:
    script = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n" + HANDLER
    server = Server(write(tmp_path / "m", {"model.py": script}), "")
    servers.append(server)
    server.wait_listening()
    wait_until(lambda: server.ping().json()["m"].get("phase") == "preparing the model")
    assert server.invoke({}).status_code == 503
    (tmp_path / "m" / "go").touch()
    server.wait_ready()


def test_code_that_cannot_be_loaded_again_shows_in_ping(tmp_path: Path, servers: list[Server]) -> None:
    script = (
        "import os\nif os.path.exists('broken'):\n    raise OSError('a disk has gone')\n\n"
        "def handle(inputs):\n    if not inputs.is_empty():\n        os._exit(1)\n"
    )
    server = Server(write(tmp_path / "m", {"model.py": script}), "")
    servers.append(server)
    server.wait_ready()
    (tmp_path / "m" / "broken").touch()
    assert requests.post(f"{server.url}/invocations", b"x", timeout=30).status_code == 424
    wait_until(lambda: "a disk has gone" in server.ping().text)
    assert f"{tmp_path}/m/model.py, line 3: OSError: a disk has gone" in server.ping().json()["m"]["phase"]
    (tmp_path / "m" / "broken").unlink()
    server.wait_ready()


def test_a_pool_that_dies_is_restarted(tmp_path: Path, servers: list[Server]) -> None:
    script = "import time\n\ndef handle(inputs):\n    if not inputs.is_empty():\n        time.sleep(60)\n"
    server = Server(write(tmp_path / "m", {"model.py": script}), "")
    servers.append(server)
    server.wait_ready()
    pool = server.supervised("lmi_handlers.custom_code.pool")
    children = pool.children(recursive=True)
    pool.kill()
    wait_until(lambda: not any(child.is_running() for child in children))
    server.wait_ready()
    assert server.supervised("lmi_handlers.custom_code.pool") != pool
