"""`lmi serve` and `lmi check`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from lmi_handlers import __version__

_model_dir = click.option(
    "--model-dir",
    type=click.Path(path_type=Path),
    help="Model directory, with serving.properties. Defaults to /opt/ml/model if it exists, or to the current directory if it "
    "contains that file.",
)
_host = click.option("--host", help="Address to listen on. Defaults to 0.0.0.0, or to 127.0.0.1 with --local-runtime.")
_port = click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on. Defaults to SAGEMAKER_BIND_TO_PORT, or to 8080."
)


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Serve a language model as LMI and TGI do."""


@main.command()
@_model_dir
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
def serve(
    *,
    model_dir: Path | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    local_runtime: bool,
    split_payload_parts: bool,
) -> None:
    """Start the server. It replaces this process, so signals reach it."""
    environ = _environ(
        LMI_STARTED=time.monotonic(),
        LMI_MODEL_DIR=model_dir,
        LMI_HOST=host,
        LMI_PORT=port,
        LMI_WORKERS=workers,
        LMI_LOCAL_RUNTIME="true" if local_runtime else None,
        LMI_SPLIT_PAYLOAD_PARTS="true" if split_payload_parts else None,
    )
    command = [
        sys.executable,
        "-m",
        "lmi_handlers.interruptible",
        "gunicorn",
        "-c",
        "python:lmi_handlers.gunicorn_conf",
        "lmi_handlers.app:create_app()",
    ]
    os.execve(sys.executable, command, environ)  # noqa: S606  our own module, no shell


@main.command("check")
@_model_dir
@_host
@_port
@click.option("--all", "show_all", is_flag=True, help="Also print the options that are not set, with their defaults.")
def check_command(*, model_dir: Path | None, host: str | None, port: int | None, show_all: bool) -> None:
    """Check everything that can be checked before the model is loaded, and print the options in effect.

    Prints warnings first, then each option that is set, with its value, its source and what reads it. Exits with status 1
    if `lmi serve` would not start, or if an option is unknown. A port that is in use only causes a warning, because the
    server that uses it may be the one that is checked.

    Example: lmi check --model-dir ./model
    """
    from lmi_handlers.check import check  # `lmi serve` needs none of its imports, which take a quarter of a second

    check(_environ(LMI_MODEL_DIR=model_dir, LMI_HOST=host, LMI_PORT=port), show_all=show_all)


def _environ(**given: object) -> dict[str, str]:
    """The environment, overridden by the command line."""
    return dict(os.environ) | {name: str(value) for name, value in given.items() if value is not None}


if __name__ == "__main__":
    main()
