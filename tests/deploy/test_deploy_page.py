"""docs/deploy.md and sagemaker/README.md: their commands exist, and those with --dry-run work as they are written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from lmi_command import lmi
from paths import ROOT

from lmi_handlers.cli import main
from lmi_handlers.deploy.commands import COMMANDS

PAGES = [ROOT / "docs" / "deploy.md", ROOT / "sagemaker" / "README.md"]
NAMES = {command.name for command in COMMANDS}


def commands(page: Path) -> list[list[str]]:
    """The arguments of each `lmi` in the page's shell blocks that this folder declares."""
    blocks = re.findall(r"^ *```sh\n(.*?)```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line)[1:] for line in lines if line.strip().startswith("lmi ")]
    return [arguments for arguments in found if arguments[0] in NAMES]


ALL = [pytest.param(line, id=f"{page.stem}-{number}") for page in PAGES for number, line in enumerate(commands(page))]


@pytest.fixture
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `my-model` in the working directory."""
    config = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "vocab_size": 49_152}
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_model")
@pytest.mark.parametrize("arguments", ALL)
def test_commands_of_the_page(arguments: list[str]) -> None:
    command = main.commands[arguments[0]]
    command.make_context(arguments[0], arguments[1:])
    if "--dry-run" in arguments or arguments[0] == "instances":
        result = lmi(*arguments)
        assert result.exit_code == 0, result.output
        assert result.stdout


def test_the_page_shows_every_command() -> None:
    assert {arguments[0] for arguments in commands(PAGES[0])} == NAMES
    assert sum("--dry-run" in arguments for arguments in commands(PAGES[0])) >= 6
