"""A command for `lmi`, and one that is missing."""

from __future__ import annotations

import click


@click.command()
@click.argument("line")
def recite(line: str) -> None:
    """Say a line."""
    click.echo(line)
