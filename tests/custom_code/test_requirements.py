"""requirements.txt beside a model's code: installed on request, into a folder of its own. No test needs a network."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from serving import Server, lmi_check
from waiting import wait_until
from wheels import write_wheel

HANDLER = """
import sys
import colours
from djl_python import Output


def handle(inputs):
    if inputs.is_empty():
        return None
    packages = sys.path.index(colours.__file__.rpartition("/")[0])
    ours = max(index for index, path in enumerate(sys.path) if path.endswith("-packages") and index != packages)
    in_order = ours < packages < sys.path.index(__file__.rpartition("/")[0])
    return Output().add_as_json([colours.NAME, colours.__file__, in_order])
"""
OPTION = "option.install_requirements=true\n"

Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve the model directory `name`, with a cache for this test and without an index of packages."""
    servers: list[Server] = []

    def start(name: str = "m", properties: str = OPTION) -> Server:
        environ = {
            "LMI_CACHE_DIR": str(tmp_path / "cache"),
            "PIP_NO_INDEX": "1",
            "PIP_TARGET": str(tmp_path / "target"),
        }
        servers.append(Server(tmp_path / name, properties, environ=environ))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def write(directory: Path, requirements: str = "colours\n", handler: str = HANDLER) -> Path:
    directory.mkdir()
    (directory / "model.py").write_text(handler)
    (directory / "requirements.txt").write_text(requirements)
    return directory


def call(server: Server) -> list[object]:
    answer: list[object] = requests.post(f"{server.url}/invocations", b"{}", timeout=60).json()
    return answer


def packages(tmp_path: Path) -> list[Path]:
    return [folder for folder in (tmp_path / "cache").glob("requirements-*") if folder.is_dir()]


def test_wheels_are_installed_once_and_never_into_the_servers_environment(serve: Serve, tmp_path: Path) -> None:
    directory = write(tmp_path / "m", "colours\nmsgspec\n")
    write_wheel(directory / "requirements", "colours", "1.0", "import shades\nNAME = shades.NAME\n", ("shades",))
    write_wheel(directory / "requirements", "shades", "2.0", "NAME = 'red'\n")
    write_wheel(directory / "requirements", "msgspec", "0.0.1", "1 / 0")
    server = serve().wait_ready()
    [folder] = packages(tmp_path)
    file = next(folder.glob("lib/*/site-packages/colours.py"))
    assert call(server) == ["red", str(file), True]
    assert "Successfully installed colours-1.0 shades-2.0" in server.log
    assert "Requirement already satisfied: msgspec" in server.log, "what the server has"
    assert not [*folder.glob("lib/*/site-packages/msgspec*")]
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("colours")
    server.stop()
    installed = file.stat().st_mtime_ns
    server = serve().wait_ready()
    assert "Successfully installed" not in server.log
    assert file.stat().st_mtime_ns == installed


FORMATTER = """
import colours
from djl_python.output_formatter import output_formatter


@output_formatter
def paint(output):
    import shades

    return f"{colours.NAME} {shades.NAME}"
"""


def test_formatters_beside_an_engine_get_their_packages(serve: Serve, tmp_path: Path) -> None:
    directory = write(tmp_path / "m", "colours\n", FORMATTER)
    write_wheel(directory / "requirements", "colours", "1.0", "NAME = 'red'\n", ("shades",))
    write_wheel(directory / "requirements", "shades", "2.0", "NAME = 'dark'\n")
    server = serve(properties=f"{OPTION}option.rolling_batch=echo\n").wait_ready()
    answer = server.invoke({"inputs": "a", "parameters": {"max_new_tokens": 1}})
    assert "red dark" in answer.text


@pytest.mark.long
def test_a_new_wheel_is_installed(serve: Serve, tmp_path: Path) -> None:
    directory = write(tmp_path / "m")
    write_wheel(directory / "requirements", "colours", "1.0", "NAME = 'red'\n")
    server = serve().wait_ready()
    assert call(server)[0] == "red"
    server.stop()
    write_wheel(directory / "requirements", "colours", "1.1", "NAME = 'blue'\n")
    assert call(serve().wait_ready())[0] == "blue"


@pytest.mark.long
def test_another_version_of_the_servers_packages_is_an_error(serve: Serve, tmp_path: Path) -> None:
    directory = write(tmp_path / "m", "msgspec<0.1\n")
    write_wheel(directory / "requirements", "msgspec", "0.0.1", "1 / 0")
    server = serve()
    assert server.process.wait(120) == 1
    ours = importlib.metadata.version("msgspec")
    error = f"{directory}/requirements.txt needs msgspec 0.0.1, but the server has {ours}, which takes precedence"
    assert f"lmi: error: {error}" in server.log
    assert not packages(tmp_path)


def test_a_failure_has_the_last_lines_of_pip(serve: Serve, tmp_path: Path) -> None:
    directory = write(tmp_path / "m")
    server = serve()
    assert server.process.wait(120) == 1
    [line] = [line for line in server.log.splitlines() if line.startswith("lmi: error: ")]
    assert says(line, f"{directory}/requirements.txt cannot installed status 1")
    assert line.endswith("ERROR: No matching distribution found for colours")
    assert not packages(tmp_path)


def test_without_the_option_a_warning_says_how(tmp_path: Path) -> None:
    directory = write(tmp_path / "m")
    ended = lmi_check(directory, "--no-code")
    assert says(ended.stdout, f"{directory}/requirements.txt ignored option.install_requirements=true install")


def slow_wheel(directory: Path, tmp_path: Path) -> None:
    """Let pip wait for a file while it installs: it builds a package whose setup.py does so."""
    source = directory / "slow"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    wheel = write_wheel(tmp_path / "built", "colours", "1.0", "NAME = 'green'\n")
    (source / "backend.py").write_text(
        "import os, shutil, time\n\n"
        "def build_wheel(folder, settings=None, metadata=None):\n"
        f"    open({str(tmp_path / 'builds')!r}, 'a').write('x')\n"
        f"    while not os.path.exists({str(tmp_path / 'go')!r}):\n        time.sleep(0.05)\n"
        f"    return os.path.basename(shutil.copy({str(wheel)!r}, folder))\n"
    )


@pytest.mark.long
def test_two_servers_install_once_and_ping_shows_the_phase(serve: Serve, tmp_path: Path) -> None:
    slow_wheel(write(tmp_path / "m", "./slow\n"), tmp_path)
    one, other = serve().wait_listening(), serve().wait_listening()
    phases = ("installing requirements", "installing requirements: waiting for another process that does the same")
    wait_until(lambda: sorted(str(server.ping().json()["m"].get("phase")) for server in (one, other)) == [*phases])
    (tmp_path / "go").touch()
    assert [call(server.wait_ready())[0] for server in (one, other)] == ["green", "green"]
    assert (tmp_path / "builds").read_text() == "x"


@pytest.mark.long
def test_a_killed_installation_leaves_nothing_behind(serve: Serve, tmp_path: Path) -> None:
    slow_wheel(write(tmp_path / "m", "./slow\n"), tmp_path)
    server = serve()
    wait_until((tmp_path / "builds").exists)
    pool = server.supervised("lmi_handlers.custom_code.pool")
    pips = pool.children(recursive=True)
    assert pips
    os.kill(pool.pid, 9)
    wait_until(lambda: not any(pip.is_running() for pip in pips))
    (tmp_path / "go").touch()
    assert call(server.wait_ready())[0] == "green"
    assert [folder.name for folder in packages(tmp_path) if ".partial" in folder.name] == []


@pytest.mark.long
def test_an_installation_that_takes_too_long(serve: Serve, tmp_path: Path) -> None:
    slow_wheel(write(tmp_path / "m", "./slow\n"), tmp_path)
    server = serve(properties=OPTION + "option.model_loading_timeout=5\n")
    assert server.process.wait(120) == 1
    assert says(server.log, "model_loading_timeout 5 installing requirements")
