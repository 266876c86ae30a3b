"""`lmi serve` and `lmi check`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from backends import load_backend_class
from backends.features import passes_options, sampled_defaults
from backends.selection import select_backend
from lmi_handlers import __version__
from lmi_handlers.dialects import check_dialects
from lmi_handlers.errors import ConfigError
from lmi_handlers.properties import ServingProperties, load_properties, render_check
from lmi_handlers.server_settings import find_model_dir

_model_dir = click.option(
    "--model-dir",
    type=click.Path(path_type=Path),
    help="Directory with serving.properties. Default: /opt/ml/model, else the current one if it has the file.",
)


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Serve a language model the way LMI and TGI do."""


@main.command()
@_model_dir
@click.option("--host", help="Address to listen on. Default: 0.0.0.0, with --local-runtime 127.0.0.1.")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: SAGEMAKER_BIND_TO_PORT, else 8080.")
@click.option("--workers", type=click.IntRange(1, 256), help="Web worker processes. Default: by the number of cores.")
@click.option(
    "--local-runtime", is_flag=True, help="Also answer SageMaker's runtime API, so that boto3 works unmodified."
)
@click.option(
    "--split-payload-parts", is_flag=True, help="Cut the local runtime's stream at hostile places, as AWS may."
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
    """Run the server in place of this process, so that signals reach it."""
    given = {
        "LMI_MODEL_DIR": model_dir,
        "LMI_HOST": host,
        "LMI_PORT": port,
        "LMI_WORKERS": workers,
        "LMI_LOCAL_RUNTIME": "true" if local_runtime else None,
        "LMI_SPLIT_PAYLOAD_PARTS": "true" if split_payload_parts else None,
    }
    environ = os.environ | {name: str(value) for name, value in given.items() if value is not None}
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "-c",
        "python:lmi_handlers.gunicorn_conf",
        "lmi_handlers.app:create_app()",
    ]
    os.execve(sys.executable, command, environ)  # noqa: S606  ourselves, without a shell


@main.command()
@_model_dir
def check(*, model_dir: Path | None) -> None:
    """Print every option, its value, where it came from and who reads it. Exits 1 on an unknown option or a mistake."""
    try:
        directory = find_model_dir(str(model_dir) if model_dir else os.environ.get("LMI_MODEL_DIR"))
        loaded = load_properties(directory, os.environ)
        selection = select_backend(loaded.properties)
        check_dialects(loaded.properties, sampled_defaults(selection.name))
    except ConfigError as error:
        _fail(error)
    click.echo(f"backend: {selection.name} ({selection.reason})\n")
    passes = passes_options(selection.name)
    click.echo(render_check(loaded, selection.name, passes_options=passes))
    if passes:
        _check_with_engine(selection.name, loaded.properties)
    if loaded.unknown_names(passes_options=passes):
        sys.exit(1)


def _check_with_engine(backend: str, properties: ServingProperties) -> None:
    """What an engine makes of the options that it is to be passed; where it is not installed, nobody can say."""
    try:
        backend_class = load_backend_class(backend)
    except ConfigError as error:
        click.echo(f"Not checked: {error}")
        return
    try:
        backend_class.check_options(properties)
    except ConfigError as error:
        _fail(error)


def _fail(error: ConfigError) -> NoReturn:
    click.echo(f"lmi: error: {error}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
