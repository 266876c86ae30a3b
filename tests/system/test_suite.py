"""`make test` and `make test-long` together run all tests, and CI skips none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from failed_modules import MOST, main
from groups import FIRST
from paths import ROOT

LONG_AND_SHORT = """
import pytest


def test_short() -> None:
    pass


@pytest.mark.long
def test_long() -> None:
    pass


@pytest.mark.needs("sys")
def test_long_by_its_library() -> None:
    pass


@pytest.mark.needs("no_such_library")
def test_without_its_library() -> None:
    pass
"""

TWINS = """
import pytest


def pytest_pycollect_makeitem(collector, name, obj):
    if name == "test_twin":
        return [pytest.Function.from_parent(collector, name=name, callobj=obj) for _ in range(2)]
"""


def commands(target: str, *variables: str) -> str:
    done = subprocess.run(["make", "-n", target, *variables], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def selection(target: str) -> str:
    """Return the marker expression with which `make <target>` selects tests."""
    expressions: list[str] = re.findall(r'-m pytest -m ("[^"]*"|\w+)', commands(target))
    assert len(expressions) == 1
    return expressions[0].strip('"')


def with_conftest() -> dict[str, str]:
    """Return an environment in which another pytest finds our conftest.py."""
    ours = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    folders = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]
    return ours | {"PYTHONPATH": os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))}


def outcomes(tmp_path: Path, expression: str, environ: dict[str, str]) -> dict[str, int]:
    """Return the outcomes of `LONG_AND_SHORT` with our settings and our conftest.py."""
    (tmp_path / "test_both.py").write_text(LONG_AND_SHORT)
    return counted(pytest_output(tmp_path, "-m", expression, environ=environ))


def pytest_output(tmp_path: Path, *arguments: str, environ: dict[str, str]) -> str:
    """Run the tests below a folder with our settings and our conftest.py, and return the output."""
    settings = [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
    ]
    environ = with_conftest() | environ
    command = [sys.executable, "-m", "pytest", *settings, *arguments, str(tmp_path)]
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False).stdout


def counted(output: str) -> dict[str, int]:
    """Return how many tests had each outcome, from the last line of pytest's output."""
    summary = output.splitlines()[-1]
    return {
        outcome: int(number)
        for number, outcome in re.findall(r"(\d+) (passed|failed|skipped|deselected|error)", summary)
    }


def test_each_test_is_run_by_exactly_one_target(tmp_path: Path) -> None:
    assert (selection("test"), selection("test-long")) == ("not long", "long")
    assert outcomes(tmp_path, selection("test"), {}) == {"passed": 1, "deselected": 3}
    assert outcomes(tmp_path, selection("test-long"), {}) == {"passed": 2, "skipped": 1, "deselected": 1}


def test_two_tests_with_one_id_fail(tmp_path: Path) -> None:
    """pytest-xdist would run one of them, and say nothing of the other."""
    (tmp_path / "twins.py").write_text(TWINS)
    (tmp_path / "test_twins.py").write_text("def test_twin(): pass\n")
    output = pytest_output(tmp_path, "-p", "twins", "-n", "1", environ={})
    assert counted(output).get("error") == 1, output
    assert "several tests have the id test_twins.py::test_twin" in output


def test_the_groups_that_come_first_exist() -> None:
    assert [group for group in FIRST if group.startswith("tests/") and not (ROOT / group).is_file()] == []


def test_a_missing_library_fails_the_test_on_ci(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "needs", {"CI": "true"}) == {"passed": 1, "error": 1, "deselected": 2}


def test_ci_runs_all_targets() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    [suites] = re.findall(r'^for suite in (.+); do\n    make "\$suite" ', script, re.MULTILINE)
    assert re.findall(r"^make (\S+)", script, re.MULTILINE) == ["check"]
    assert suites.split() == ["test", "test-long"]
    assert "export CI=" in script


@pytest.mark.parametrize(("then", "modules"), [("pass", ["test_first.py"]), ("pytest.exit('no memory')", [])])
def test_failures_of_a_whole_run_run_again(then: str, modules: list[str], tmp_path: Path) -> None:
    first = f"import pytest\ndef test_one(): assert 0\ndef test_two(): {then}\n"
    (tmp_path / "test_first.py").write_text(first)
    (tmp_path / "test_second.py").write_text("def test_three(): pass\n")
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "conftest"]
    subprocess.run(command, cwd=tmp_path, env=with_conftest(), capture_output=True, check=False)
    script = [sys.executable, str(ROOT / "tests" / "support" / "failed_modules.py")]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (modules, 0 if modules else 1), done.stderr


@pytest.mark.parametrize(("status", "modules"), [(2, 1), (1, MOST + 1), (0, 0), (None, 1)])
def test_nothing_else_runs_again(status: int | None, modules: int, tmp_path: Path) -> None:
    for name, value in (
        ("lmi/exit_status", status),
        ("cache/lastfailed", {f"tests/test_{number}.py::test": True for number in range(modules)}),
    ):
        path = tmp_path / "v" / name
        path.parent.mkdir(parents=True)
        if value is not None:
            path.write_text(json.dumps(value))
    assert main(tmp_path)


@pytest.mark.parametrize("part", ["vllm", "clients"])
def test_make_test_installs_only_what_it_needs(part: str) -> None:
    """Checks the commands that `make` would run if nothing were installed."""
    assert part not in commands("test", "VENV=/nonexistent")
    assert part in commands("test-long", "VENV=/nonexistent")


def test_no_test_skips_itself_if_a_library_is_missing() -> None:
    """The marker `needs` does this in one place, where CI can turn it into a failure."""
    skipping = "import" + "orskip"
    assert [path.name for path in ROOT.glob("tests/**/*.py") if skipping in path.read_text()] == []
