"""Servers that are started inside a model's folder with modules named like the standard library's or like ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from serving import Server, free_port

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.engine.settings import EngineSettings

STANDARD = ("json", "queue", "types", "logging", "socket")
OURS = ("formatters", "backends", "lmi_handlers")

Start = Callable[..., Server]


@pytest.fixture
def start_inside(tmp_path: Path) -> Iterator[Start]:
    """Start the installed `lmi` in a folder with these modules, each of which raises an error if it is imported.

    The keywords are other modules of the folder.
    """
    servers: list[Server] = []

    def start(modules: tuple[str, ...], properties: str, **others: str) -> Server:
        directory = tmp_path / "m"
        directory.mkdir()
        raising = {name: f"raise RuntimeError('{name} of the model was imported')\n" for name in modules}
        for name, text in (raising | others).items():
            (directory / f"{name}.py").write_text(text)
        port = free_port()
        command = [str(Path(sys.executable).with_name("lmi")), "serve", "--host", "127.0.0.1", "--port", str(port)]
        servers.append(Server(directory, properties, command=command, port=port))
        return servers[0]

    yield start
    for server in servers:
        server.stop()


def test_modules_beside_an_engines_model_hide_nothing(start_inside: Start) -> None:
    server = start_inside((*STANDARD, *OURS), "option.rolling_batch=echo\n").wait_ready()
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
    assert "of the model was imported" not in server.log


def test_modules_beside_model_py_hide_nothing(start_inside: Start) -> None:
    script = (
        "import json, mine, queue\nfrom djl_python import Output\n\n"
        "def handle(inputs):\n    return Output().add_as_json(mine.VALUE)\n"
    )
    server = start_inside((*STANDARD, "backends", "formatters"), "", model=script, mine="VALUE = 1\n").wait_ready()
    assert requests.post(f"{server.url}/invocations", b"{}", timeout=60).json() == 1
    assert "of the model was imported" not in server.log


def test_modules_that_the_code_could_not_import_are_refused(start_inside: Start) -> None:
    server = start_inside(OURS, "", model="def handle(inputs):\n    return None\n")
    assert server.process.wait(240) == 1
    assert says(server.log, f"lmi: error: {server.directory}/lmi_handlers.py another name")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no such setting")
def test_modules_in_the_working_directory_hide_nothing_from_processes_that_an_engine_spawns(tmp_path: Path) -> None:
    settings = EngineSettings(runtime_dir=str(tmp_path), properties=ServingProperties(), started=0.0)
    (tmp_path / "socket.py").write_text("raise RuntimeError('socket of the model was imported')\n")
    program = tmp_path / "programs" / "engine.py"
    program.parent.mkdir()
    program.write_text(
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print, args=('spawned',))\n"
        "    child.start()\n    child.join()\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for variables, output in ((environ, ""), (environ | settings.environ, "spawned\n")):
        done = subprocess.run(
            [sys.executable, program], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert done.stdout == output
