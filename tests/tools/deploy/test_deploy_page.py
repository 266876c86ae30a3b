"""docs/deploy.md shows every command of its folder. tests/system/test_pages.py runs those that need no account."""

from __future__ import annotations

from doc_snippets import commands, snippets
from paths import ROOT

from lmi_handlers.commands.registry import TOOLS


def test_the_page_shows_every_command() -> None:
    blocks = [snippet.text for snippet in snippets(ROOT / "docs" / "deploy.md") if snippet.language == "sh"]
    shown = [command for block in blocks for command in commands(block)]
    own = {name for name, location in TOOLS.items() if location.startswith("lmi_handlers.tools.deploy.")}
    assert {command[1] for command in shown} == own | {"invoke"}
    assert sum("--dry-run" in command for command in shown) >= 6
