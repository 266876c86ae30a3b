"""`lmi`: the server's commands `serve`, `check` and `run`. `registry` finds all others."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import BinaryIO

import click

from lmi_handlers import __version__
from lmi_handlers.commands.registry import Commands
from lmi_handlers.config.local_runtime import MAX_CONCURRENCY
from lmi_handlers.core.terminal import show
from lmi_handlers.workers.program import command

_model_dir = click.option(
    "--model-dir",
    type=click.Path(path_type=Path),
    help="Model directory, with serving.properties. Defaults to /opt/ml/model if it exists, or to the current directory if it "
    "contains that file.",
)
_model_store = click.option(
    "--model-store",
    type=click.Path(path_type=Path),
    help="Directory with several models: each of its sub-directories that holds one is served.",
)
_host = click.option(
    "--host",
    help="Address to listen on. Defaults to 127.0.0.1, which only this machine reaches; in a container to 0.0.0.0, unless "
    "--local-runtime is given.",
)
_port = click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on. Defaults to SAGEMAKER_BIND_TO_PORT, or to 8080."
)


@click.group(cls=Commands)
@click.version_option(__version__)
def main() -> None:
    """Serve a language model as LMI and TGI do."""


@main.command()
@_model_dir
@_model_store
@_host
@_port
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="Number of web worker processes. Defaults to a number that depends on the CPU cores.",
)
@click.option(
    "--local-runtime", is_flag=True, help="Also serve SageMaker's runtime API, so that boto3 works without changes."
)
@click.option(
    "--split-payload-parts",
    is_flag=True,
    help="Make the local runtime split streams inside records and characters, as AWS may.",
)
@click.option(
    "--endpoint-name", help="The only endpoint that the local runtime has. By default, it answers to any name."
)
@click.option(
    "--local-runtime-keys",
    metavar="FILE",
    help="Check signatures with the access keys in this file, which has the format of ~/.aws/credentials.",
)
@click.option(
    "--async-output",
    metavar="URL",
    help="Answer asynchronous invocations, and write the answers here: s3://bucket/prefix or file:///folder.",
)
@click.option("--async-failure", metavar="URL", help="Where failures are written. Defaults to --async-output.")
@click.option(
    "--async-concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    help="Number of asynchronous invocations at a time. Defaults to 4.",
)
@click.option(
    "--async-success-url", metavar="URL", help="Where to post a notification when an asynchronous invocation succeeds."
)
@click.option("--async-error-url", metavar="URL", help="Where to post a notification when it fails.")
@click.option(
    "--reload",
    is_flag=True,
    help="For development: load the model's own code again whenever a .py file in its folder changes.",
)
def serve(
    *,
    model_dir: Path | None,
    model_store: Path | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    local_runtime: bool,
    split_payload_parts: bool,
    endpoint_name: str | None,
    local_runtime_keys: str | None,
    async_output: str | None,
    async_failure: str | None,
    async_concurrency: int | None,
    async_success_url: str | None,
    async_error_url: str | None,
    reload: bool,
) -> None:
    """Start the server. It replaces this process, so signals reach it."""
    environ = _environ(
        LMI_STARTED=time.monotonic(),
        LMI_MODEL_DIR=model_dir,
        LMI_MODEL_STORE=model_store,
        LMI_HOST=host,
        LMI_PORT=port,
        LMI_WORKERS=workers,
        LMI_LOCAL_RUNTIME="true" if local_runtime else None,
        LMI_SPLIT_PAYLOAD_PARTS="true" if split_payload_parts else None,
        LMI_ENDPOINT_NAME=endpoint_name,
        LMI_LOCAL_RUNTIME_KEYS=local_runtime_keys,
        LMI_ASYNC_OUTPUT=async_output,
        LMI_ASYNC_FAILURE=async_failure,
        LMI_ASYNC_CONCURRENCY=async_concurrency,
        LMI_ASYNC_SUCCESS_URL=async_success_url,
        LMI_ASYNC_ERROR_URL=async_error_url,
        LMI_RELOAD="true" if reload else None,
    )
    gunicorn = (
        "lmi_handlers.launch.gunicorn_app",
        "-c",
        "python:lmi_handlers.gunicorn_conf",
        "lmi_handlers.app:create_app()",
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))  # until `interruptible` can end without a traceback
    os.execve(sys.executable, command("lmi_handlers.commands.interruptible", *gunicorn), environ)  # noqa: S606  our own module, no shell


@main.command("check")
@_model_dir
@_model_store
@_host
@_port
@click.option("--all", "show_all", is_flag=True, help="Also print the options that are not set, with their defaults.")
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
def check_command(
    *,
    model_dir: Path | None,
    model_store: Path | None,
    host: str | None,
    port: int | None,
    show_all: bool,
    no_code: bool,
    source: tuple[str, str] | None,
) -> None:
    """Check everything that can be checked before the model is loaded, and print the options in effect.

    A model's own code (model.py) is imported and called once without content, in a process of its own.

    Prints warnings first, then each option that is set, with its value, its source and what reads it. Exits with status 1
    if `lmi serve` would not start, or if an option is unknown. A port that is in use only causes a warning, because the
    server that uses it may be the one that is checked.

    Examples: lmi check --model-dir ./model, lmi check --from vllm 'vllm serve Qwen/Qwen3-8B -tp 2'
    """
    from lmi_handlers.commands.check import (  # `lmi serve` needs none of these imports, which take 0.25 s
        check,
        translate,
    )

    if source is not None:
        show(translate(*source), end="")
        return
    environ = _environ(LMI_MODEL_DIR=model_dir, LMI_MODEL_STORE=model_store, LMI_HOST=host, LMI_PORT=port)
    check(_for_people(environ), show_all=show_all, runs_code=not no_code)


@main.command("run")
@_model_dir
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
    *, model_dir: Path | None, content: BinaryIO, content_type: str | None, headers: tuple[str, ...], include: bool
) -> None:
    """Call the model's own code (model.py) once, without a server, and print its answer.

    What the code itself prints goes to standard error. Exits with status 1 if the status of the answer is 400 or more.

    Example: lmi run --model-dir ./model --input payload.json
    """
    from lmi_handlers.commands.run import run

    environ = _for_people(_environ(LMI_MODEL_DIR=model_dir))
    run(environ, content, content_type=content_type, headers=headers, include=include)


def _for_people(environ: dict[str, str]) -> dict[str, str]:
    """Make what this process and its children log readable, unless `LOG_FORMAT` is set."""
    os.environ.setdefault("LOG_FORMAT", "text")
    return {"LOG_FORMAT": "text"} | environ


def _environ(**given: object) -> dict[str, str]:
    """The environment, overridden by the command line."""
    return dict(os.environ) | {name: str(value) for name, value in given.items() if value is not None}


if __name__ == "__main__":
    main()
