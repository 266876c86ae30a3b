"""The commands of this folder. What takes long to import is imported in a command, because every `lmi` imports this."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from lmi_handlers.core.terminal import show
from lmi_handlers.tools.client.options import explained, region_option
from lmi_handlers.tools.deploy.options import deployment_options

_model_dir = click.option(
    "--model-dir", type=click.Path(path_type=Path), help="Model directory on this machine, with serving.properties."
)
_max_model_len = click.option(
    "--max-model-len", type=click.IntRange(1), help="For the instance type. Defaults to the option of that name."
)
_concurrency = click.option(
    "--concurrency",
    type=click.IntRange(1),
    help="Requests at a time, for the instance type. Defaults to option.max_rolling_batch_size, or to 8.",
)


@click.command("deploy")
@click.option("--name", required=True, help="Name of the endpoint.")
@region_option
@_model_dir
@click.option("--upload-to", metavar="S3_URI", help="Copy --model-dir to a folder below this one.")
@click.option("--follow-links", is_flag=True, help="Also copy what links in --model-dir lead to outside of it.")
@deployment_options
@_max_model_len
@_concurrency
@click.option("--update", is_flag=True, help="Change an endpoint that exists.")
@click.option(
    "--wait", is_flag=True, help="Wait until the endpoint is in service. Components and autoscaling always wait."
)
@click.option("--keep-failed", is_flag=True, help="Keep what was created if a later step fails.")
@click.option("--keep-model-data", is_flag=True, help="Keep the copies of former model directories after an update.")
@click.option("--dry-run", is_flag=True, help="Print the API calls as JSON instead of making them.")
@click.option(
    "--check-role", is_flag=True, help="Ask IAM whether you and the role have the permissions that are needed."
)
@explained
def deploy_command(**options: Any) -> None:
    """Create or update a SageMaker endpoint that runs this server.

    Creates a model, an endpoint configuration and the endpoint, and as asked an inference component with adapters and an
    autoscaling policy. If a step fails, what was created is deleted again. A dry run needs no credentials.

    Example: lmi deploy --name my-model --image <ecr image> --role <role arn> --model-data s3://bucket/prefix/ --wait
    """
    from lmi_handlers.core.install import check_installed
    from lmi_handlers.tools.deploy.deploy import Run, deploy

    check_installed("boto3", extra="aws")
    how = Run(**{field: options.pop(field) for field in Run.__struct_fields__})
    deploy(options, how)


@click.command("undeploy")
@click.option("--name", required=True, help="Name of the endpoint.")
@region_option
@click.option("--component", metavar="NAME", help="Delete only this inference component, with its adapters.")
@click.option("--keep-model-data", is_flag=True, help="Keep the copy of the model directory in S3.")
@explained
def undeploy_command(*, name: str, region: str | None, component: str | None, keep_model_data: bool) -> None:
    """Delete everything that `lmi deploy` made: only what carries its tag.

    What is missing already is no error, so an interrupted run can be repeated.
    """
    from lmi_handlers.tools.client.aws import Aws
    from lmi_handlers.tools.deploy.undeploy import undeploy

    undeploy(Aws(region), name, component=component, keep_model_data=keep_model_data)


@click.command("status")
@click.option("--name", required=True, help="Name of the endpoint.")
@region_option
@click.option("--json", "as_json", is_flag=True, help="Print what AWS says as JSON.")
@explained
def status_command(*, name: str, region: str | None, as_json: bool) -> None:
    """Print the state of an endpoint, its variants, components and autoscaling, with the reasons of failures.

    Exits with status 0 if everything is in service, 1 if something has failed, 3 while something changes, and 4 if there
    is no such endpoint.
    """
    from lmi_handlers.tools.client.aws import Aws
    from lmi_handlers.tools.deploy.inventory import scalable_targets, take_inventory
    from lmi_handlers.tools.deploy.status import exit_code, render

    aws = Aws(region)
    inventory = take_inventory(aws, name)
    targets = scalable_targets(aws, inventory)
    if as_json:
        shown = {"endpoint": inventory.endpoint, "components": inventory.components, "targets": targets}
        show(json.dumps(shown, indent=2, default=str))
    else:
        show(render(inventory, targets))
    sys.exit(exit_code(inventory))


@click.command("logs")
@click.option("--name", help="Name of the endpoint.")
@click.option("--component", metavar="NAME", help="Name of an inference component.")
@region_option
@click.option("--since", default="1h", show_default=True, help="How far back, such as 90s, 15m, 2h or 1d.")
@click.option("--filter", "pattern", help="CloudWatch's filter pattern, such as ERROR.")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--streams", "with_stream", is_flag=True, help="Print the variant and the instance before each line.")
@explained
def logs_command(
    *,
    name: str | None,
    component: str | None,
    region: str | None,
    since: str,
    pattern: str | None,
    follow: bool,
    with_stream: bool,
) -> None:
    """Print the log of an endpoint's or a component's containers, from CloudWatch."""
    from lmi_handlers.tools.client.aws import Aws
    from lmi_handlers.tools.deploy.logs import log_group, parse_duration, read_log, render

    if (name is None) == (component is None):
        raise click.UsageError("exactly one of --name and --component is needed")
    seconds = parse_duration(since)
    lines = read_log(Aws(region), log_group(name, component), seconds=seconds, pattern=pattern, follow=follow)
    for line in lines:
        show(render(line, with_stream=with_stream))


@click.command("instances")
@_model_dir
@_max_model_len
@_concurrency
@explained
def instances_command(*, model_dir: Path | None, max_model_len: int | None, concurrency: int | None) -> None:
    """Propose instance types for a model, and say why.

    Adds up the model's weights and the KV cache of its requests, and compares the sum with the memory of GPUs, or of
    instances without GPUs if the model is small. Nothing is sent to AWS.
    """
    from backends import registry
    from lmi_handlers.config.properties import load_properties
    from lmi_handlers.core.errors import ConfigError
    from lmi_handlers.tools.deploy.instances import instance_types, render
    from lmi_handlers.tools.deploy.sizing import UNKNOWN_SIZE, assumed_options, proposals

    directory = model_dir or Path.cwd()
    loaded = load_properties(directory, {}, registry())
    found = proposals(loaded, directory, instance_types(), max_model_len=max_model_len, batch=concurrency)
    if found is None:
        raise ConfigError(f"{directory}: {UNKNOWN_SIZE}")
    show(render(*found))
    degree = found[1][0].tensor_parallel_degree or None if found[1] else None
    options = assumed_options(loaded, max_model_len=max_model_len, batch=concurrency, degree=degree)
    if options:
        show("for the first, add to serving.properties:")
    for name, value in options.items():
        show(f"  option.{name}={value}")
