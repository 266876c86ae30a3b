"""The reference page of the command line: `python docs/site/commands_page.py > docs/commands.md`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import click

from lmi_handlers.commands.cli import main
from lmi_handlers.commands.registry import subcommands

_PAGE = """\
# Commands

Generated from the commands themselves by `python docs/site/commands_page.py > docs/commands.md`.
`lmi COMMAND --help` prints the same."""


def commands_page() -> str:
    """Return the text of docs/commands.md."""
    blocks = [_PAGE, *(block for name, command in commands("lmi", main) for block in _section(name, command))]
    return "\n\n".join(blocks) + "\n"


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below `command`, with its whole name, in alphabetical order."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for part, below in subcommands(command).items():
        yield from commands(f"{name} {part}", below)


def _section(name: str, command: click.Command) -> Iterator[str]:
    yield f"## {name}"
    for paragraph in (command.help or "").split("\n\n"):
        yield textwrap.fill(" ".join(paragraph.replace("\b", "").split()), 100, break_long_words=False)
    rows = [_row(parameter) for parameter in command.params]
    if rows:
        yield "\n".join(["| argument | what it does |", "| --- | --- |", *rows])


def _row(parameter: click.Parameter) -> str:
    if not isinstance(parameter, click.Option):
        return f"| `{parameter.human_readable_name}` | {'required' if parameter.required else ''} |"
    with click.Context(click.Command("lmi")) as context:
        names, explanation = parameter.get_help_record(context) or ("", "")
    plain = re.sub(r"([<>*_~])", r"\\\1", _cell(explanation))
    return f"| `{_cell(names)}` | {plain} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(commands_page(), end="")
