"""The commands of this folder. What takes long to import is imported in the command, because every `lmi` imports this."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


@click.group("ray")
def ray() -> None:
    """Serve on a cluster, with Ray Serve."""


@ray.command()
@click.option(
    "--model-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Model directory, with serving.properties. It must have the same path on every node.",
)
@click.option("--address", help="Ray cluster: auto, or host:port. By default, a Ray for this machine is started.")
@click.option("--replicas", type=int, help="Number of replicas, or how many to start with. [default: 1]")
@click.option("--min-replicas", type=int, help="Smallest number of replicas, with --max-replicas. [default: 1]")
@click.option("--max-replicas", type=int, help="Start and stop replicas by their load, up to this number.")
@click.option("--upscale-delay-s", type=float, help="Seconds that more replicas must be needed. [default: 10]")
@click.option("--downscale-delay-s", type=float, help="Seconds that fewer replicas must suffice. [default: 300]")
@click.option("--target-usage", type=float, help="Share of a replica's batch and KV cache to fill. [default: 0.8]")
@click.option("--num-cpus", type=float, help="CPU cores of a replica. Defaults to its share of the cluster.")
@click.option("--num-gpus", type=int, help="GPUs of a replica. Defaults to what option.tensor_parallel_degree needs.")
@click.option(
    "--routing",
    type=click.Choice(["least", "model", "prefix"]),
    default="least",
    show_default=True,
    help="Send requests to the replica with the fewest, or those for the same model, or with the same prefix, to one.",
)
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="A variable for the replicas. May be repeated.")
@click.option(
    "--host",
    help="Address to listen on. Defaults to 0.0.0.0 with --address, and to that of `lmi serve` without.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="Port to listen on.")
@click.option(
    "--proxies",
    type=click.Choice(["EveryNode", "HeadOnly"]),
    default="EveryNode",
    show_default=True,
    help="Nodes that listen: those with replicas, or the head node only.",
)
@click.option("--detach", is_flag=True, help="With --address: leave it on the cluster, and return once it serves.")
def serve(
    *,
    model_dir: Path,
    address: str | None,
    env: tuple[str, ...],
    host: str | None,
    port: int,
    proxies: str,
    detach: bool,
    **given: Any,
) -> None:
    """Serve a model with several replicas on a Ray cluster, until Ctrl-C.

    Each replica is a server as `lmi serve` starts it, and answers the same bytes. What the cluster serves already is
    replaced, one replica after the other.

    Example: lmi ray serve --model-dir ./model --replicas 2
    """
    from lmi_handlers.config.server_settings import ALL_INTERFACES, default_host
    from lmi_handlers.core.errors import ConfigError
    from lmi_handlers.core.install import check_installed
    from lmi_handlers.core.log import fail

    try:
        check_installed("ray", extra="ray")
    except ConfigError as error:
        fail(str(error))
    if detach and address is None:
        fail("--detach needs --address: without a cluster, Ray ends with this command")
    from pydantic import ValidationError

    from lmi_handlers.ray.arguments import Arguments
    from lmi_handlers.ray.run import RayServeOptions, run

    host = host or (default_host(os.environ) if address is None else ALL_INTERFACES)
    try:
        arguments = Arguments(model_dir=str(model_dir.resolve()), environ=dict(map(_variable, env)), **_given(given))
        run(arguments, RayServeOptions(address=address, host=host, port=port, proxies=proxies, detach=detach))
    except ValidationError as error:
        fail(
            *(": ".join((*map(str, each["loc"]), each["msg"].removeprefix("Value error, "))) for each in error.errors())
        )
    except ConfigError as error:
        fail(str(error))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return name, value if equals else os.environ.get(name, "")
