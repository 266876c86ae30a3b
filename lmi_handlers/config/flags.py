"""Settings of the server as options of commands, with what `environment.py` declares about them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from lmi_handlers.config.environment import DeclaredVariable, all_variables
from lmi_handlers.config.server_settings import ServerSettings

F = TypeVar("F", bound=Callable[..., Any])

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
"""A link to another page of the documentation, which a terminal would not show as one."""

FLAGS = {item.variable.flag: item for item in all_variables(ServerSettings) if item.variable.flag}
"""The settings that commands can set, by the names of their options."""


def settings_options(*flags: str) -> Callable[[F], F]:
    """Return a decorator that adds these options to a command, all of them if none is named.

    The command's function gets each as an argument with the name of the environment variable, for `overridden`.
    """

    def add(function: F) -> F:
        for flag in reversed(flags or tuple(FLAGS)):
            function = _option(FLAGS[flag])(function)
        return function

    return add


def overridden(given: Mapping[str, object]) -> dict[str, str]:
    """Return the environment, with the variables that the command line sets."""
    return dict(os.environ) | {name: str(value) for name, value in given.items() if value is not None}


def _option(declared: DeclaredVariable) -> Callable[[F], F]:
    variable = declared.variable
    names = (variable.flag, variable.name)
    plain = _LINK.sub(r"\1", variable.help)
    if bool in declared.types:
        return click.option(*names, is_flag=True, flag_value="true", type=str, default=None, help=plain)
    return click.option(*names, type=_type(declared), metavar=variable.metavar, help=plain)


def _type(declared: DeclaredVariable) -> click.ParamType[Any]:
    if int in declared.types:
        bounds: Any = declared.bounds  # integers, as the type is
        return click.IntRange(bounds.ge, bounds.le)
    return click.Path() if declared.variable.metavar in ("PATH", "FILE") else click.STRING
