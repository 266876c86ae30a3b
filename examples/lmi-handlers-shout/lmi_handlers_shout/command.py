"""`lmi shout`: a command of the command line, which imports it when it is called."""

from __future__ import annotations

import click


@click.command()
@click.argument("text")
@click.option("--marks", type=click.IntRange(0, 100), default=3, show_default=True, help="Number of exclamation marks.")
def shout(text: str, marks: int) -> None:
    """Print a text as the backend `shout` would answer it."""
    click.echo(text.upper() + "!" * marks)
