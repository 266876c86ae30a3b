"""docs/custom-code.md: each of its five steps, as it is written there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from serving import ENVIRON, Server, free_port

PAGE = (ROOT / "docs" / "custom-code.md").read_text()
STEPS = [
    [textwrap.dedent(block) for block in re.findall(r"```\w+\n(.*?)```", step, re.DOTALL)]
    for step in re.split(r"^\d\. ", PAGE.partition("## While you write")[0], flags=re.MULTILINE)[1:]
]
ON_THE_PATH = ENVIRON | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{ENVIRON['PATH']}"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the first step has been done."""
    directory = tmp_path_factory.mktemp("page")
    (directory / "my-model").mkdir()
    (directory / "my-model" / "model.py").write_text(STEPS[0][0])
    return directory


@pytest.fixture
def server(directory: Path) -> Iterator[Server]:
    port = free_port()
    environ = {"SAGEMAKER_BIND_TO_PORT": str(port), "PATH": ON_THE_PATH["PATH"]}
    server = Server(directory, "", command=shlex.split(STEPS[3][0]), port=port, environ=environ)
    yield server
    server.stop()


def bash(command: str, directory: Path) -> str:
    return subprocess.run(
        ["bash", "-c", command], cwd=directory, env=ON_THE_PATH, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_there_are_five_steps() -> None:
    assert len(STEPS) == 5


def test_check(directory: Path) -> None:
    assert "It works." in bash(STEPS[1][0], directory)


def test_run(directory: Path) -> None:
    command, answer = STEPS[2]
    assert bash(command, directory) == answer.rstrip()


def test_serve_and_call(server: Server, directory: Path) -> None:
    server.wait_ready()
    assert json.loads(bash(STEPS[3][1].replace("8080", str(server.port)), directory)) == {"sum": 6}


def test_deploy() -> None:
    calls = json.loads(bash(STEPS[4][1], ROOT))
    assert [call["operation"] for call in calls] == ["create_model", "create_endpoint_config", "create_endpoint"]
