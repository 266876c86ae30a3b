"""The commands of `lmi` beside the server's own: tools, and those of other distributions."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from click.testing import CliRunner
from facts import says
from paths import SUPPORT

from lmi_handlers.commands.cli import main
from lmi_handlers.commands.registry import TOOLS, subcommands


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT / "plugin")
    assert "recite" in entry_points(group="lmi_handlers.commands").names


def test_each_tool_has_its_name() -> None:
    assert {name: subcommands(main)[name].name for name in TOOLS} == {name: name for name in TOOLS}


def test_another_distribution_adds_a_command(plugin: None) -> None:
    listed = CliRunner().invoke(main, ["--help"])
    assert "recite" in listed.output
    assert "Say a line." in listed.output
    assert CliRunner().invoke(main, ["recite", "to be"]).output == "to be\n"


def test_a_command_that_cannot_be_imported_says_so_and_costs_no_other(plugin: None) -> None:
    listed = CliRunner().invoke(main, ["--help"])
    assert listed.exit_code == 0
    assert "serve" in listed.output
    called = CliRunner().invoke(main, ["forgotten", "--what", "now"])
    assert called.exit_code == 1
    assert says(called.output, "forgotten cannot imported AttributeError")


def test_no_distribution_takes_the_name_of_a_tool(plugin: None) -> None:
    assert "--concurrency" in CliRunner().invoke(main, ["bench", "--help"]).output


def test_unknown_command() -> None:
    result = CliRunner().invoke(main, ["sirve"])
    assert result.exit_code == 2
    assert "No such command 'sirve'" in result.output


@pytest.mark.parametrize("arguments", [["serve", "--help"], ["check", "--help"], ["run", "--help"]])
def test_the_servers_commands_import_no_tool(arguments: list[str]) -> None:
    program = (
        "import sys, atexit; from lmi_handlers.commands.cli import main; "
        "atexit.register(lambda: print(*sorted(sys.modules), sep='\\n')); main()"
    )
    result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    loaded = result.stdout.splitlines()
    assert "lmi_handlers.commands.cli" in loaded
    tools = {location.partition(":")[0].rpartition(".")[0] for location in TOOLS.values()}
    assert not [name for name in loaded if name in tools or name.rpartition(".")[0] in tools]
