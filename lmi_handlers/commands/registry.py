"""Finds the commands of `lmi` beside the server's own: the tools here, and those that other distributions install.

A distribution adds a command with an entry point in the group `lmi_handlers.commands`, whose value is a `click.Command`.
A command is imported when it is called, or when `lmi --help` lists it: `lmi serve` imports none of them.
"""

from __future__ import annotations

import click

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.plugins import installed, load_instance

ENTRY_POINT_GROUP = "lmi_handlers.commands"

TOOLS = {
    "bench": "lmi_handlers.tools.bench.commands:bench",
    "chat": "lmi_handlers.tools.chat.commands:chat",
    "conform": "lmi_handlers.tools.conform.commands:conform",
    "deploy": "lmi_handlers.tools.deploy.commands:deploy_command",
    "explain": "lmi_handlers.tools.explain.commands:explain_command",
    "instances": "lmi_handlers.tools.deploy.commands:instances_command",
    "invoke": "lmi_handlers.tools.client.invoke_command:invoke_command",
    "logs": "lmi_handlers.tools.deploy.commands:logs_command",
    "ray": "lmi_handlers.ray.commands:ray",
    "replay": "lmi_handlers.tools.replay.commands:replay",
    "status": "lmi_handlers.tools.deploy.commands:status_command",
    "transform": "lmi_handlers.tools.batch_transform.commands:transform",
    "undeploy": "lmi_handlers.tools.deploy.commands:undeploy_command",
}
"""Command names to "module:name"."""


class Commands(click.Group):
    """The group of all commands. Those added to it take precedence, then our tools, then other distributions' commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *TOOLS, *(point.name for point in installed(ENTRY_POINT_GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called `cmd_name`, or None. One that cannot be imported says so when it is called."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        others = TOOLS if cmd_name in TOOLS else {point.name: point.value for point in installed(ENTRY_POINT_GROUP)}
        if cmd_name not in others:
            return None
        try:
            return load_instance("command", others, cmd_name, click.Command)
        except ConfigError as error:
            return _broken(cmd_name, str(error))


def subcommands(group: click.Group) -> dict[str, click.Command]:
    """Return the commands of a group by name, in alphabetical order."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in sorted(group.list_commands(context))}
    return {name: command for name, command in found.items() if command is not None}


def _broken(name: str, cause: str) -> click.Command:
    def fail() -> None:
        raise click.ClickException(cause)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, anything, fail, short_help=f"({cause})", add_help_option=False)
