"""The command line that tools share. `lmi --help` imports it for each of them, so nothing else is imported here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

region_option = click.option("--region", help="Defaults to the region that boto3 is configured with.")
api_key_option = click.option(
    "--api-key", envvar="API_KEY", help="Key of the server at --url. Defaults to the variable API_KEY."
)
model_option = click.option(
    "--model", default="", help="Name of the model, for APIs that have one. Defaults to the server's own."
)


def report_options(what: str) -> Callable[[F], F]:
    """Return the options that name the files of a report: `what` it tells, such as "the figures"."""
    file = click.Path(path_type=Path, dir_okay=False)
    as_json = click.option("--json", "json_file", type=file, help=f"Write {what} here, as JSON.")
    as_page = click.option("--page", "page_file", type=file, help=f"Write {what} here, as a page in HTML.")
    return lambda command: as_json(as_page(command))


def check_needed(option: str, **given: object) -> None:
    """Raise `click.UsageError` if any of the `given` options is set: they have no effect without `option`."""
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} needs {option}")


def explained(function: F) -> F:
    """Print errors as the other commands do, and exit with status 1."""

    @functools.wraps(function)
    def command(**options: Any) -> None:
        from lmi_handlers.core.errors import ConfigError
        from lmi_handlers.core.log import fail
        from lmi_handlers.tools.client.errors import AnswerFailed, CallRefused

        try:
            function(**options)
        except (ConfigError, CallRefused, AnswerFailed) as error:
            fail(str(error))

    return command  # type: ignore[return-value]
