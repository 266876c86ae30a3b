"""Deletes everything that `lmi deploy` made, in the order in which AWS allows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmi_handlers.core.terminal import show
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.client.errors import CallRefused
from lmi_handlers.tools.deploy.inventory import Inventory, Leftover, is_ours, scalable_targets, take_inventory, unused
from lmi_handlers.tools.deploy.run import delete
from lmi_handlers.tools.deploy.upload import delete_upload


def undeploy(aws: Aws, name: str, *, component: str | None, keep_model_data: bool) -> None:
    """Delete the deployment, or one of its components. What is missing already is no error. Raises `CallRefused`."""
    inventory = take_inventory(aws, name)
    _check_ours(aws, inventory)
    deletions = list(_deletions(inventory, scalable_targets(aws, inventory), component))
    if component is not None and not deletions:
        show(f"{name} has no component {component}")
        return
    for deletion in deletions:
        delete(aws, deletion)
    leftovers = list(unused(aws, take_inventory(aws, name)))
    clean_up(aws, leftovers, name, keep_model_data=keep_model_data)
    if not deletions and not leftovers:
        show(f"nothing is left of {name}")


def clean_up(aws: Aws, leftovers: list[Leftover], name: str, *, keep_model_data: bool) -> None:
    """Delete what the deployment `name` does not use, with its copies of model directories in S3. Raises `CallRefused`."""
    for leftover in leftovers:
        delete(aws, leftover.deletion)
    for url in dict.fromkeys(leftover.uploaded_to for leftover in leftovers if leftover.uploaded_to):
        if keep_model_data:
            show(f"{url} is kept; to delete it: aws s3 rm --recursive {url}")
        else:
            delete_upload(aws, url, name)


def _check_ours(aws: Aws, inventory: Inventory) -> None:
    """Raise `CallRefused` if `lmi deploy` did not make what would be deleted."""
    endpoint, name = inventory.endpoint, inventory.name
    if endpoint is not None and not is_ours(aws, endpoint["EndpointArn"], name):
        raise CallRefused(
            f"the endpoint {name} was not made by lmi deploy (it has no tag lmi:deployment={name}), so it is not deleted"
        )
    for item in inventory.components:
        if not is_ours(aws, item["InferenceComponentArn"], name):
            raise CallRefused(
                f"the inference component {item['InferenceComponentName']} of {name} was not made by lmi deploy (it has no tag "
                f"lmi:deployment={name}); delete it first"
            )


def _deletions(inventory: Inventory, targets: list[dict[str, Any]], component: str | None) -> Iterator[AwsCall]:
    """Yield the deletions of what runs: what scales, then adapters before their base, then the endpoint."""
    components = [
        item for item in inventory.components if component in (None, item["InferenceComponentName"], _base(item))
    ]
    names = [item["InferenceComponentName"] for item in sorted(components, key=lambda item: _base(item) is None)]
    for target in targets:
        if component is None or target["ResourceId"] == f"inference-component/{component}":
            identity = {key: target[key] for key in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
            yield AwsCall("application-autoscaling", "deregister_scalable_target", identity)
    for name in names:
        yield AwsCall("sagemaker", "delete_inference_component", {"InferenceComponentName": name})
    if inventory.endpoint is not None and component is None:
        yield AwsCall("sagemaker", "delete_endpoint", {"EndpointName": inventory.name})


def _base(component: dict[str, Any]) -> str | None:
    """Return the name of an adapter's base component."""
    base: str | None = component["Specification"].get("BaseInferenceComponentName")
    return base
