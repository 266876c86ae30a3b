"""A deployment: the options of `lmi deploy`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.s3_url import S3Url, is_s3, parse_s3_url
from lmi_handlers.tools.deploy.options import SCALING_DEFAULTS

DEPLOYMENT_TAG = "lmi:deployment"
"""On everything that `lmi deploy` creates. Its value is the endpoint's name. Nothing without it is ever deleted."""

UPLOAD_TAG = "lmi:uploaded-to"
"""On a model: where `lmi deploy` has copied the model directory to."""

MAX_NAME = 54
"""Of an endpoint. AWS allows 63 characters, and the names of models and configurations end with 9 of our own."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The fields are the options of the command line, with the defaults declared there. See `commands.py`."""

    name: str
    region: str | None

    # What runs
    image: str | None
    role: str | None
    model_data: S3Url | None
    uploaded: bool
    environment: Mapping[str, str]
    tags: Mapping[str, str]
    network_isolation: bool
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    kms_key: str | None

    # Where it runs
    instance_type: str
    instance_count: int
    variant_name: str
    volume_size: int | None
    inference_ami_version: str | None
    routing_strategy: str
    startup_timeout: int
    download_timeout: int
    ssm_access: bool
    capacity_reservation: str | None

    # Inference components
    component: str | None
    base_component: str | None
    existing_endpoint: bool
    adapters: Mapping[str, str]
    copies: int | None
    accelerators: int | None
    cpus: float | None
    memory: int
    min_instances: int | None
    max_instances: int | None

    # Autoscaling
    autoscale: str | None
    autoscale_target: float | None
    min_capacity: int
    max_capacity: int
    scale_in_cooldown: int
    scale_out_cooldown: int

    # Asynchronous inference
    async_output: str | None
    async_failure: str | None
    async_success_topic: str | None
    async_error_topic: str | None
    async_include_response: bool
    async_max_concurrent: int | None

    # Updates
    update_strategy: str
    update_percent: int
    update_interval: int
    rollback_alarms: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise `ConfigError` for options that contradict each other."""
        if problems := _contradictions(self):
            raise ConfigError("\n".join(problems))
        check_image_region(self.image, self.region)

    @property
    def makes_model(self) -> bool:
        return self.base_component is None

    @property
    def makes_endpoint(self) -> bool:
        return not (self.existing_endpoint or self.base_component)

    @property
    def waits(self) -> bool:
        """Components and scaling targets can only be made once the endpoint is in service."""
        return bool(self.component or self.adapters or self.autoscale)

    @property
    def ignored(self) -> list[str]:
        """The options of autoscaling that are given without it, and so have no effect."""
        if self.autoscale is not None:
            return []
        defaults = {"autoscale_target": None, **SCALING_DEFAULTS}
        return [f"--{name.replace('_', '-')}" for name, default in defaults.items() if getattr(self, name) != default]

    @property
    def aws_tags(self) -> list[dict[str, str]]:
        return [{"Key": key, "Value": value} for key, value in {**self.tags, DEPLOYMENT_TAG: self.name}.items()]


def _contradictions(given: Deployment) -> list[str]:
    """Return in what the options contradict each other."""
    adapts, scales = bool(given.adapters), given.autoscale is not None
    is_async = given.async_output is not None
    other_async = given.async_failure or given.async_success_topic or given.async_error_topic
    found = {
        f"--name must have at most {MAX_NAME} characters, got {len(given.name)}": len(given.name) > MAX_NAME,
        "--image is missing": given.makes_model and not given.image,
        "--role is missing": given.makes_model and not given.role,
        "without --model-data or --model-dir, an --env such as HF_MODEL_ID=.. must name the model": (
            given.makes_model and given.model_data is None and not given.environment
        ),
        "--base-component names a component that runs already, so it excludes --component and a model": (
            given.base_component is not None and bool(given.component or given.image or given.model_data)
        ),
        "--base-component needs --adapter NAME=S3_URI": given.base_component is not None and not adapts,
        "--adapter needs --component or --base-component: adapters are loaded into an inference component": (
            adapts and not (given.component or given.base_component)
        ),
        "--existing-endpoint needs --component: only components can be added to an endpoint": (
            given.existing_endpoint and not (given.component or given.base_component)
        ),
        "--min-instances and --max-instances need --component; for an endpoint without components, use --autoscale": (
            (given.min_instances is not None or given.max_instances is not None) and given.component is None
        ),
        "--autoscale-target is missing: the value of the metric to keep": scales and given.autoscale_target is None,
        "--max-capacity must be at least --min-capacity": scales and given.max_capacity < given.min_capacity,
        "--min-capacity must be at least 1: without an instance, no metric of --autoscale has a value that starts one": (
            scales and given.min_capacity == 0
        ),
        "--update-percent must be at least 10 with --update-strategy linear": (
            given.update_strategy == "linear" and given.update_percent < 10
        ),
        "--autoscale backlog needs --async-output: only asynchronous endpoints have a backlog": (
            given.autoscale == "backlog" and not is_async
        ),
        "--async-output is missing: the S3 folder for answers": (
            not is_async and bool(other_async or given.async_max_concurrent or given.async_include_response)
        ),
        "--async-output and --component exclude each other: SageMaker has no asynchronous inference components": (
            is_async and given.component is not None
        ),
        "--async-include-response needs --async-success-topic or --async-error-topic": (
            given.async_include_response and not (given.async_success_topic or given.async_error_topic)
        ),
        "--subnet and --security-group belong together": bool(given.subnets) != bool(given.security_groups),
        f"--tag {DEPLOYMENT_TAG} and {UPLOAD_TAG} are set by lmi deploy itself": (
            not {DEPLOYMENT_TAG, UPLOAD_TAG}.isdisjoint(given.tags)
        ),
    }
    return [problem for problem, is_found in found.items() if is_found]


def check_image_region(image: str | None, region: str | None) -> None:
    """Raise `ConfigError` if the image is in another region than the endpoint: SageMaker does not pull it from there."""
    found = _ECR.match(image or "")
    if found and region is not None and found["region"] != region:
        raise ConfigError(
            f"--image {image} is in {found['region']}, and the endpoint in {region}: SageMaker needs an image in the "
            f"endpoint's region; push it to Amazon ECR in {region}, or use --region {found['region']}"
        )


_ECR = re.compile(r"\d{12}\.dkr\.ecr(-fips)?\.(?P<region>[a-z\d-]+)\.amazonaws\.com")


def model_data_source(url: S3Url) -> dict[str, Any]:
    """Return SageMaker's data source: an archive is unpacked into /opt/ml/model, and a prefix is copied there unchanged."""
    if url.is_archive:
        return {"S3Uri": str(url), "S3DataType": "S3Object", "CompressionType": "Gzip"}
    return {"S3Uri": f"{str(url).rstrip('/')}/", "S3DataType": "S3Prefix", "CompressionType": "None"}


def s3_url(text: str) -> S3Url:
    """Parse an S3 URL. Raises `ConfigError` for any other text."""
    if not is_s3(text):
        raise ConfigError(f"{text} is not an S3 URL, such as s3://bucket/folder/")
    return parse_s3_url(text)
