"""Runs a command of `lmi` in this process."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from lmi_handlers.commands.cli import main


def lmi(*arguments: str, **options: Any) -> Result:
    """Run `lmi` and return its output and exit code. An error that the command does not explain fails the test."""
    result = CliRunner().invoke(main, arguments, **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
