"""The resources of a deployment on AWS: those with its tag, and those of its endpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.deploy.deployment import DEPLOYMENT_TAG, UPLOAD_TAG

SHADOWS = "ShadowProductionVariants"
VARIANTS = ("ProductionVariants", SHADOWS)
"""The lists of variants in descriptions of endpoints and of their configurations. `lmi deploy` makes no shadow variants."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint and its inference components, described as the API does."""

    name: str
    endpoint: dict[str, Any] | None
    components: list[dict[str, Any]]

    @property
    def status(self) -> str | None:
        """The endpoint's status, or None if there is no endpoint."""
        return None if self.endpoint is None else self.endpoint["EndpointStatus"]


def take_inventory(aws: Aws, name: str) -> Inventory:
    """Describe the endpoint and its components. Raises `CallRefused`."""
    endpoint = aws.find(AwsCall("sagemaker", "describe_endpoint", {"EndpointName": name}))
    components = []
    for item in aws.pages("sagemaker", "list_inference_components", "InferenceComponents", EndpointNameEquals=name):
        component = {"InferenceComponentName": item["InferenceComponentName"]}
        described = aws.find(AwsCall("sagemaker", "describe_inference_component", component))
        components += [] if described is None else [described]
    return Inventory(name=name, endpoint=endpoint, components=components)


def scalable_targets(aws: Aws, inventory: Inventory) -> list[dict[str, Any]]:
    """Return what Application Auto Scaling scales of a deployment. Raises `CallRefused`."""
    components = {f"inference-component/{item['InferenceComponentName']}" for item in inventory.components}
    listed = aws.pages(
        "application-autoscaling", "describe_scalable_targets", "ScalableTargets", ServiceNamespace="sagemaker"
    )
    variants = f"endpoint/{inventory.name}/variant/"
    return [item for item in listed if item["ResourceId"] in components or item["ResourceId"].startswith(variants)]


def scaling_policies(aws: Aws, resource: str) -> list[str]:
    """Return the names of the policies by which a target scales. Raises `CallRefused`."""
    asked = {"ServiceNamespace": "sagemaker", "ResourceId": resource}
    listed = aws.pages("application-autoscaling", "describe_scaling_policies", "ScalingPolicies", **asked)
    return [item["PolicyName"] for item in listed]


def is_ours(aws: Aws, arn: str, name: str) -> bool:
    """Tell whether `lmi deploy` made it for this deployment. Raises `CallRefused`."""
    return tags(aws, arn).get(DEPLOYMENT_TAG) == name


def tags(aws: Aws, arn: str) -> dict[str, str]:
    """Return the tags of a resource. Raises `CallRefused`."""
    return {tag["Key"]: tag["Value"] for tag in aws.pages("sagemaker", "list_tags", "Tags", ResourceArn=arn)}


class Leftover(msgspec.Struct, frozen=True):
    """A model or configuration that nothing uses. `uploaded_to` is the copy of the model directory that it was made from."""

    deletion: AwsCall
    uploaded_to: str | None = None


def unused(aws: Aws, inventory: Inventory) -> Iterator[Leftover]:
    """Yield the deployment's configurations and models that its endpoint does not use. Raises `CallRefused`."""
    endpoint = inventory.endpoint or {}
    descriptions = [endpoint, endpoint.get("PendingDeploymentSummary", {})]
    configurations = {found["EndpointConfigName"] for found in descriptions if "EndpointConfigName" in found}
    for name, _ in _named(aws, "endpoint_config", "EndpointConfig", inventory.name):
        if name not in configurations:
            yield Leftover(AwsCall("sagemaker", "delete_endpoint_config", {"EndpointConfigName": name}))
    used = {item["Specification"].get("ModelName") for item in inventory.components}
    for configuration in configurations:
        call = AwsCall("sagemaker", "describe_endpoint_config", {"EndpointConfigName": configuration})
        described = aws(call)
        used |= {variant.get("ModelName") for kind in VARIANTS for variant in described.get(kind, [])}
    models = list(_named(aws, "model", "Model", inventory.name))
    kept = {found.get(UPLOAD_TAG) for name, found in models if name in used}
    for name, found in models:
        if name not in used:
            uploaded_to = found.get(UPLOAD_TAG)
            deletion = AwsCall("sagemaker", "delete_model", {"ModelName": name})
            yield Leftover(deletion, None if uploaded_to in kept else uploaded_to)


def _named(aws: Aws, noun: str, key: str, deployment: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the names and tags of a deployment's models or configurations."""
    pattern = re.compile(rf"{re.escape(deployment)}-[0-9a-f]{{8}}")
    found = list(aws.pages("sagemaker", f"list_{noun}s", f"{key}s", NameContains=deployment))
    for item in found:
        if pattern.fullmatch(item[f"{key}Name"]):
            its_tags = tags(aws, item[f"{key}Arn"])
            if its_tags.get(DEPLOYMENT_TAG) == deployment:
                yield item[f"{key}Name"], its_tags
