"""The options of `lmi deploy`. Every `lmi` builds them, so nothing else is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class Pairs(click.ParamType):  # type: ignore[type-arg]  # before click 8.4, it takes none
    """NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split the text at the first equals sign."""
        name, separator, text = str(value).partition("=")
        if not (name and separator):
            self.fail(f"{value!r} is not of the form NAME=VALUE", param, ctx)
        return name, text


def _as_mapping(ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, str], ...]) -> dict[str, str]:  # noqa: ARG001
    return dict(value)


def _pairs(name: str, field: str, help_text: str, metavar: str = "NAME=VALUE") -> Callable[[F], F]:
    return click.option(name, field, type=Pairs(), multiple=True, metavar=metavar, callback=_as_mapping, help=help_text)


_option = click.option
_SECONDS = click.IntRange(60, 3600)
_POSITIVE = click.IntRange(1)

_RUNS = (
    _option("--image", help="Image in Amazon ECR, built with sagemaker/Dockerfile."),
    _option("--role", help="ARN of the role with which SageMaker reads the image and the model."),
    _option(
        "--model-data", metavar="S3_URI", help="Prefix or .tar.gz with serving.properties at the top level, in S3."
    ),
    _pairs("--env", "environment", "A variable of the container, such as HF_MODEL_ID=org/name. May be repeated."),
    _pairs("--tag", "tags", "A tag of everything that is created. May be repeated."),
    _option("--network-isolation", is_flag=True, help="Run the container without network access."),
    _option("--subnet", "subnets", multiple=True, help="A subnet of your VPC. May be repeated."),
    _option("--security-group", "security_groups", multiple=True, help="A security group in it. May be repeated."),
    _option("--kms-key", help="Key that encrypts the instances' disks and asynchronous answers."),
)
_WHERE = (
    _option("--instance-type", help="Defaults to the smallest one with room for the model, if its files are here."),
    _option("--instance-count", type=_POSITIVE, default=1, show_default=True),
    _option("--variant-name", default="AllTraffic", show_default=True),
    _option("--volume-size", type=click.IntRange(1, 512), metavar="GB", help="For instances without local storage."),
    _option(
        "--inference-ami-version",
        help="Such as al2-ami-sagemaker-inference-gpu-3-1, for a newer GPU driver.",
    ),
    _option(
        "--routing-strategy",
        type=click.Choice(["LEAST_OUTSTANDING_REQUESTS", "RANDOM"]),
        default="LEAST_OUTSTANDING_REQUESTS",
        show_default=True,
    ),
    _option("--startup-timeout", type=_SECONDS, default=1200, show_default=True, help="Seconds to load the model."),
    _option("--download-timeout", type=_SECONDS, default=1200, show_default=True, help="Seconds for the model data."),
    _option("--ssm-access", is_flag=True, help="Allow a shell in the container, through AWS Systems Manager."),
    _option("--capacity-reservation", metavar="ARN", help="Use only the instances of this reservation."),
)
_COMPONENTS = (
    _option("--component", metavar="NAME", help="Run the model as an inference component of this name."),
    _option("--existing-endpoint", is_flag=True, help="Add --component to an endpoint made by lmi deploy."),
    _option("--base-component", metavar="NAME", help="Only add each --adapter to this component, which runs already."),
    _pairs("--adapter", "adapters", "A LoRA adapter: a component of that name. May be repeated.", "NAME=S3_URI"),
    _option("--copies", type=click.IntRange(0), help="Copies of the component. Defaults to 1; an update keeps them."),
    _option(
        "--accelerators", type=_POSITIVE, help="GPUs per copy. Defaults to what the model needs, if that is known."
    ),
    _option("--cpus", type=click.FloatRange(0.25), help="CPU cores per copy."),
    _option("--memory", type=click.IntRange(128), metavar="MIB", default=1024, show_default=True, help="Per copy."),
    _option("--min-instances", type=click.IntRange(0), help="Let SageMaker add and remove instances as copies need."),
    _option("--max-instances", type=_POSITIVE),
)
SCALING_DEFAULTS = {
    "min_capacity": 1,
    "max_capacity": 2,
    "scale_in_cooldown": 300,
    "scale_out_cooldown": 60,
}
"""Defaults of options that are read with --autoscale only."""


def _scaling(name: str, kind: click.IntRange, metavar: str | None = None) -> Callable[[F], F]:
    default = SCALING_DEFAULTS[name.removeprefix("--").replace("-", "_")]
    return click.option(name, type=kind, default=default, show_default=True, metavar=metavar)


_AUTOSCALING = (
    _option(
        "--autoscale",
        type=click.Choice(["invocations", "concurrency", "queue", "backlog"]),
        help="Scale instances, or copies of the component, by: invocations per minute; concurrent requests; the server's "
        "own queue of waiting sequences, which it then publishes to CloudWatch; the backlog of an asynchronous endpoint.",
    ),
    _option("--autoscale-target", type=float, help="Value of the metric, per instance or copy, to keep."),
    _scaling("--min-capacity", click.IntRange(0)),
    _scaling("--max-capacity", _POSITIVE),
    _scaling("--scale-in-cooldown", click.IntRange(0), "SECONDS"),
    _scaling("--scale-out-cooldown", click.IntRange(0), "SECONDS"),
)
_ASYNC = (
    _option("--async-output", metavar="S3_URI", help="Make the endpoint asynchronous, with its answers here."),
    _option("--async-failure", metavar="S3_URI", help="Where the errors are written."),
    _option("--async-success-topic", metavar="ARN", help="SNS topic that is told of answers."),
    _option("--async-error-topic", metavar="ARN", help="SNS topic that is told of errors."),
    _option("--async-include-response", is_flag=True, help="Include answers in the notifications."),
    _option("--async-max-concurrent", type=click.IntRange(1, 1000), help="Requests at a time per instance."),
)
_UPDATES = (
    _option(
        "--update-strategy",
        type=click.Choice(["all-at-once", "canary", "linear", "rolling"]),
        default="all-at-once",
        show_default=True,
        help="How traffic moves to the new instances. All but rolling are blue/green.",
    ),
    _option("--update-percent", type=click.IntRange(5, 50), default=25, show_default=True, help="Size of each step."),
    _option("--update-interval", type=click.IntRange(0, 3600), default=120, show_default=True, metavar="SECONDS"),
    _option(
        "--rollback-alarm",
        "rollback_alarms",
        multiple=True,
        help="CloudWatch alarm that rolls an update back. Repeatable.",
    ),
)


def deployment_options(function: F) -> F:
    """Add the options that are fields of `Deployment`, besides its name and region."""
    for option in reversed((*_RUNS, *_WHERE, *_COMPONENTS, *_AUTOSCALING, *_ASYNC, *_UPDATES)):
        function = option(function)
    return function
