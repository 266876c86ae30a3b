"""A release: its version, the changelog, and the distributions, which are built and installed."""

from __future__ import annotations

import ast
import email
import importlib
import re
import subprocess
import sys
import tarfile
import zipfile
from datetime import date
from pathlib import Path

import pytest
import requests
from commands_page import commands
from environments import Environment, copy_sources
from lowest_versions import lowest_versions
from packaging.version import Version
from paths import ROOT, TESTS
from serving import Server, free_port

from lmi_handlers import __version__
from lmi_handlers.commands.cli import main
from lmi_handlers.laptop.console.routes import static_files

PACKAGES = ("lmi_handlers", "backends", "formatters")
INFO = f"lmi_handlers-{__version__}.dist-info"


def test_the_changelog_has_this_version_below_what_is_not_released() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[([\d.]+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert None not in released
    versions = [(Version(found[1]), date.fromisoformat(found[2])) for found in released if found]
    assert versions == sorted(versions, reverse=True)
    assert versions[0][0] == Version(__version__)


def test_the_stable_names_exist_and_suffice_for_the_example() -> None:
    page = (ROOT / "docs" / "stability.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (`.+`) \|$", page.partition("## Names to import")[2], re.MULTILINE)
    stable = {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}
    modules = {module for module, _ in stable} - {"lmi_handlers.wsgi"}  # which makes the application on import
    for module, name in stable:
        assert module not in modules or hasattr(importlib.import_module(module), name), (module, name)
    assert (ROOT / "lmi_handlers" / "wsgi.py").is_file()
    imported = set()
    for file in (ROOT / "examples" / "lmi-handlers-shout").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                imported |= {(node.module, alias.name) for alias in node.names}
    assert imported
    assert imported <= stable


def test_the_lowest_versions_are_those_of_the_chosen_extras() -> None:
    requirements = ["a>=1.2", "b<3", "c>=2,<4; extra == 'x'", "d>=4; extra == 'y'", "e>=5; python_version < '3'"]
    assert list(lowest_versions(requirements, ["x", "z"])) == ["a==1.2", "c==2"]


def test_what_is_tried_with_the_lowest_versions_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    tests = re.search(r"^LOWEST_TESTS := \$\(addprefix tests/,(.*?)\)$", makefile, re.MULTILINE | re.DOTALL)
    assert tests
    assert [name for name in tests[1].split() if name != "\\" and not (TESTS / name).exists()] == []


class Distributions:
    """What `python -m build` makes of the sources: an archive of sources, and the wheel that is built from it."""

    def __init__(self, directory: Path) -> None:
        sources = copy_sources(directory / "sources")
        (sources / "lmi_handlers" / "__pycache__").mkdir()
        (sources / "lmi_handlers" / "__pycache__" / "app.cpython-311.pyc").write_bytes(b"a cache")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory / "dist"), str(sources)]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        self.wheel = directory / "dist" / f"lmi_handlers-{__version__}-py3-none-any.whl"
        self.archive = directory / "dist" / f"lmi_handlers-{__version__}.tar.gz"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return Distributions(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel."""
    return Environment(tmp_path_factory.mktemp("installed"), distributions.wheel)


def source_files() -> set[str]:
    """The files of the three packages, as the repository has them."""
    files = (path for name in PACKAGES for path in (ROOT / name).rglob("*"))
    return {path.relative_to(ROOT).as_posix() for path in files if path.is_file() and "__pycache__" not in path.parts}


def licences() -> set[str]:
    """The licences of the server and of everything in it that others wrote."""
    return {"LICENSE"} | {name for name in source_files() if "LICENSE" in Path(name).name}


@pytest.mark.long
def test_the_wheel_has_the_packages_and_nothing_else(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        files = set(wheel.namelist())
        metadata = email.message_from_bytes(wheel.read(f"{INFO}/METADATA"))
    assert {name for name in files if not name.startswith(f"{INFO}/")} == source_files()
    assert {name for name in files if name.startswith(f"{INFO}/licenses/")} == {
        f"{INFO}/licenses/{name}" for name in licences()
    }
    assert set(metadata.get_all("License-File", [])) == licences()
    assert metadata["Version"] == __version__


@pytest.mark.long
def test_the_archive_has_the_sources_of_the_wheel(distributions: Distributions) -> None:
    folder = f"lmi_handlers-{__version__}/"
    with tarfile.open(distributions.archive) as archive:
        files = {member.name.removeprefix(folder) for member in archive if member.isfile()}
    ours = {name for name in files if not name.startswith("lmi_handlers.egg-info/")}
    assert ours == source_files() | licences() | {"PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


@pytest.mark.long
def test_every_command_has_help(installed: Environment, tmp_path: Path) -> None:
    names = ["lmi", *(name for name, _ in commands("lmi", main))]
    for name in names:
        done = installed.run("lmi", *name.split()[1:], "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert done.stdout.startswith(f"Usage: {name} "), name


@pytest.mark.long
def test_the_installed_server_serves_the_console_and_the_apis(installed: Environment, tmp_path: Path) -> None:
    found = installed.run("python", "-c", "import lmi_handlers; print(lmi_handlers.__file__)", cwd=tmp_path).stdout
    assert Path(found.strip()).is_relative_to(installed.packages)
    port = free_port()
    command = [str(installed.bin / "lmi"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    server = Server(
        tmp_path / "m", "option.rolling_batch=echo\n", command=command, port=port, environ={"PYTHONPATH": ""}
    )
    try:
        server.wait_ready()
        page = requests.get(server.url, headers={"Accept": "text/html"}, timeout=60)
        files = {name: requests.get(f"{server.url}/console/{name}", timeout=60).content for name in static_files()}
        apis = requests.get(f"{server.url}/docs", headers={"Accept": "text/html"}, timeout=60)
        answer = server.invoke({"inputs": "hi"})
    finally:
        server.stop()
    assert page.content == files["index.html"]
    assert files == static_files()
    assert apis.status_code == 200
    assert "generated_text" in answer.json()


def test_make_refuses_the_pythons_that_the_distribution_refuses() -> None:
    """The Makefile says so at once, where pip would look for older dependencies first."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    [code] = re.findall(r"^CHECK_PYTHON := (.*)$", makefile, re.MULTILINE)
    [major, minor] = re.findall(
        r'^requires-python = ">=(\d+)\.(\d+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )[0]
    lowest = int(major), int(minor)
    for version in (lowest, (3, lowest[1] - 1), (3, 14)):
        command = [sys.executable, "-c", f"import sys; sys.version_info = {version}; {code}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        named = f"Python {version[0]}.{version[1]} is too old: choose {major}.{minor} or later with PYTHON="
        assert (ended.returncode, ended.stderr.startswith(named)) == ((1, True) if version < lowest else (0, False))
