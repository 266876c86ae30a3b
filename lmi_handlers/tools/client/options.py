"""The command line that all tools for servers on AWS share. Every `lmi` builds it, so nothing else is imported here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

region_option = click.option("--region", help="Defaults to the region that boto3 is configured with.")


def explained(function: F) -> F:
    """Print errors as the other commands do, and exit with status 1."""

    @functools.wraps(function)
    def command(**options: Any) -> None:
        from lmi_handlers.core.errors import ConfigError
        from lmi_handlers.core.log import fail
        from lmi_handlers.tools.client.errors import CallRefused

        try:
            function(**options)
        except (ConfigError, CallRefused) as error:
            fail(str(error))

    return command  # type: ignore[return-value]
