"""The commands that messages about missing packages name work where the user is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from environments import Environment, copy_sources
from packaging.requirements import Requirement
from paths import ROOT

from lmi_handlers.core.install import install_command

PYTHON = Path(sys.executable)


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}")


def test_in_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert install_command("lmi-handlers[aws]") == "pip install -e '.[aws]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("lmi-handlers[vllm,ray]") == f"pip install -e '{ROOT}[ray,vllm]'"


def test_a_distribution_of_somebody_elses() -> None:
    assert install_command("my-engine[gpu]>=2") == "pip install 'my-engine[gpu]>=2'"


def test_without_the_activated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`pip` alone would install into another Python."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(PYTHON.parent.parent)
    program = shlex.quote(str(PYTHON.relative_to(PYTHON.parent.parent)))
    assert install_command("pillow") == f"{program} -m pip install pillow"


def test_from_a_wheel(tmp_path: Path) -> None:
    """Without a clone, the extra's own requirements are named, which an index has."""
    environment = Environment(tmp_path, copy_sources(tmp_path / "sources"))
    code = "from lmi_handlers.core.install import install_command; print(install_command('lmi-handlers[otel]'))"
    printed = environment.run("python", "-c", code, cwd=tmp_path).stdout
    found = [Requirement(word) for word in shlex.split(printed.partition(" install ")[2])]
    wanted = re.search(r"^otel = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert wanted
    assert [str(item) for item in found] == re.findall(r'"([^"]+)"', wanted[1])


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["bench"], "aiohttp", "bench"),
        (["invoke", "--endpoint-name", "mine", "{}"], "boto3", "aws"),
        (["ray", "serve", "--model-dir", "."], "ray", "ray"),
        (["transform", "--input", "s3://bucket/in/", "--output", "out", "--model-dir", "."], "boto3", "aws"),
    ],
)
def test_a_command_without_its_package_says_how_to_install_it(
    command: list[str], package: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    without = f"import sys; sys.modules[{package!r}] = None; from lmi_handlers.commands.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", without, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert f"needs {package}: {install_command(f'lmi-handlers[{extra}]')}" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_message_names_what_no_index_has() -> None:
    """Messages say it by `install_command`. Pages name the clone."""
    folders = [ROOT / name for name in ("lmi_handlers", "backends", "formatters", "docs", "examples")]
    files = [ROOT / "README.md", *(path for folder in folders for path in folder.rglob("*"))]
    texts = {path: path.read_text() for path in files if path.suffix in {".py", ".md", ".html", ".js"}}
    assert len(texts) > 300
    assert [str(path) for path, text in texts.items() if re.search(r"pip install '?lmi-handlers", text)] == []
