"""The current state of a deployment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmi_handlers.tools.deploy.inventory import SHADOWS, VARIANTS, Inventory
from lmi_handlers.tools.deploy.run import FAILED, IN_SERVICE, status_of

EXIT_FAILED = 1
EXIT_CHANGING = 3
EXIT_MISSING = 4
"""Exit codes besides 0, everything is in service. 2 is click's, for wrong usage."""


def exit_code(inventory: Inventory) -> int:
    """Return the exit code: a failure anywhere counts more than a change that goes on."""
    if inventory.endpoint is None:
        return EXIT_MISSING
    statuses = {status_of(item)[0] for item in (inventory.endpoint, *inventory.components)}
    if statuses & {*FAILED}:
        return EXIT_FAILED
    return 0 if statuses == {IN_SERVICE} else EXIT_CHANGING


def render(inventory: Inventory, targets: list[dict[str, Any]]) -> str:
    """Return the state for people: one line for everything that has one, and reasons of failures."""
    if inventory.endpoint is None:
        return f"There is no endpoint {inventory.name}."
    lines = [*_lines(inventory, inventory.endpoint)]
    lines += (
        f"  autoscaling of {item['ResourceId']}: {item['MinCapacity']} to {item['MaxCapacity']}" for item in targets
    )
    return "\n".join(lines)


def _lines(inventory: Inventory, endpoint: dict[str, Any]) -> Iterator[str]:
    status, reason = status_of(endpoint)
    yield f"endpoint {inventory.name}: {status} (configuration {endpoint['EndpointConfigName']})"
    yield from _reason(reason, f"lmi logs --name {inventory.name}")
    listed = [
        ("shadow variant" if kind == SHADOWS else "variant", each)
        for kind in VARIANTS
        for each in endpoint.get(kind, [])
    ]
    for kind, variant in listed:
        yield f"  {kind} {variant['VariantName']}: {_counts(variant)}"
        for item in variant.get("VariantStatus", []):
            yield f"    {item['Status']}{': ' + item['StatusMessage'] if item.get('StatusMessage') else ''}"
        for image in variant.get("DeployedImages", []):
            yield f"    image {image.get('ResolvedImage') or image.get('SpecifiedImage')}"
    for component in inventory.components:
        name = component["InferenceComponentName"]
        status, reason = status_of(component)
        base = component["Specification"].get("BaseInferenceComponentName")
        copies = component.get("RuntimeConfig", {})
        known = {"CurrentCopyCount", "DesiredCopyCount"} <= copies.keys()
        count = f", {copies['CurrentCopyCount']} of {copies['DesiredCopyCount']} copies" if known else ""
        yield f"  {f'adapter (of {base})' if base else 'component'} {name}: {status}{count}"
        yield from _reason(reason, f"lmi logs --component {name}")


def _counts(variant: dict[str, Any]) -> str:
    current, desired = variant.get("CurrentInstanceCount"), variant.get("DesiredInstanceCount")
    return f"{current if current is not None else 0} of {desired if desired is not None else '?'} instances"


def _reason(reason: str, command: str) -> Iterator[str]:
    if reason:
        yield f"    {reason}"
        yield f"    The container's own log has more: {command}"
