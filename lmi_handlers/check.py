"""`lmi check`: prints the options in effect, and what would keep `lmi serve` from doing what was intended."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NoReturn

import click

from lmi_handlers.config.report import render_settings
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.log import tell
from lmi_handlers.start_up import PortTaken, check_engine, check_port, mistakes, read_configuration, warnings


def check(environ: Mapping[str, str], *, show_all: bool) -> None:
    """Print warnings, options and errors. Exits with status 1 after an error or an unknown option."""
    try:
        configuration = read_configuration(environ)
    except ConfigError as error:
        _fail(str(error))
    selection, loaded = configuration.selection, configuration.loaded
    found, causes = [*warnings(configuration)], [*mistakes(configuration, environ)]
    try:
        check_port(configuration.settings.host, configuration.settings.port)
    except PortTaken as error:
        found.append(f"{error}: `lmi serve` starts once it is free")
    except ConfigError as error:
        causes.append(str(error))
    if found:
        click.echo("\n".join(["Warnings", *(f"  {warning}" for warning in found), ""]))
    where = f"on backend {selection.name}" if configuration.custom_code is None else "by its own code"
    click.echo(f"Model {configuration.properties.name} {where}: {selection.reason}\n")
    click.echo(render_settings(loaded, configuration.backend, show_all=show_all), nl=False)
    try:
        if not causes:
            check_engine(configuration)
    except ConfigError as error:
        causes.append(str(error))
    if causes:
        _fail(*causes)
    if loaded.unknown_names(configuration.backend):
        sys.exit(1)


def _fail(*causes: str) -> NoReturn:
    for cause in causes:
        tell("error", cause)
    sys.exit(1)
