"""`lmi`: the server's commands `serve`, `check` and `run`. `registry` finds all others."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import BinaryIO

import click

from lmi_handlers import __version__
from lmi_handlers.commands.registry import Commands
from lmi_handlers.config.flags import overridden, settings_options
from lmi_handlers.core.terminal import show
from lmi_handlers.workers.program import command


@click.group(cls=Commands)
@click.version_option(__version__)
def main() -> None:
    """Serve a language model as LMI and TGI do."""


@main.command()
@settings_options()
def serve(**given: object) -> None:
    """Start the server. It replaces this process, so signals reach it."""
    environ = overridden(given) | {"LMI_STARTED": str(time.monotonic())}
    gunicorn = (
        "lmi_handlers.launch.gunicorn_app",
        "-c",
        "python:lmi_handlers.gunicorn_conf",
        "lmi_handlers.app:create_app()",
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))  # until `interruptible` can end without a traceback
    os.execve(sys.executable, command("lmi_handlers.commands.interruptible", *gunicorn), environ)  # noqa: S606  our own module, no shell


@main.command("check")
@settings_options("--model-dir", "--model-store", "--host", "--port")
@click.option(
    "--all", "show_all", is_flag=True, help="Also print the options and settings that are not set, with their defaults."
)
@click.option(
    "--no-code",
    is_flag=True,
    help="Do not load the model's own code, which may need packages or a GPU that are elsewhere.",
)
@click.option(
    "--from",
    "source",
    type=(click.Choice(["tgi", "vllm"]), str),
    metavar="SERVER COMMAND",
    help="Check nothing. Print the serving.properties that means the same as another server's command.",
)
def check_command(*, show_all: bool, no_code: bool, source: tuple[str, str] | None, **given: object) -> None:
    """Check everything that can be checked before the model is loaded, and print the options in effect.

    A model's own code (model.py) is imported and called once without content, in a process of its own.

    Prints warnings first, then each option that is set, with its value, its source and what reads it, and the settings of
    the server. Exits with status 1 if `lmi serve` would not start, or if an option is unknown. A port that is in use only
    causes a warning, because the server that uses it may be the one that is checked.

    Examples: lmi check --model-dir ./model, lmi check --from vllm 'vllm serve Qwen/Qwen3-8B -tp 2'
    """
    from lmi_handlers.commands.check import (  # `lmi serve` needs none of these imports, which take 0.25 s
        check,
        translate,
    )

    if source is not None:
        show(translate(*source), end="")
        return
    flags = [name for name, value in given.items() if value is not None]
    environ = overridden(given)
    _log_for_people()
    check(environ, flags, show_all=show_all, runs_code=not no_code)


@main.command("run")
@settings_options("--model-dir")
@click.option(
    "--input", "content", type=click.File("rb"), required=True, help="File with the request's body, or - for stdin."
)
@click.option(
    "--content-type", help="Type of the body. Defaults to what the file's name suggests, or to application/json."
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header of the request. May be repeated."
)
@click.option("-i", "--include", is_flag=True, help="Print the status and the headers of the answer on standard error.")
def run_command(
    *, content: BinaryIO, content_type: str | None, headers: tuple[str, ...], include: bool, **given: object
) -> None:
    """Call the model's own code (model.py) once, without a server, and print its answer.

    What the code itself prints goes to standard error. Exits with status 1 if the status of the answer is 400 or more.

    Example: lmi run --model-dir ./model --input payload.json
    """
    from lmi_handlers.commands.run import run

    environ = overridden(given)
    _log_for_people()
    run(environ, content, content_type=content_type, headers=headers, include=include)


def _log_for_people() -> None:
    """Make what this process and its children log readable, unless `LOG_FORMAT` is set."""
    os.environ.setdefault("LOG_FORMAT", "text")


if __name__ == "__main__":
    main()
