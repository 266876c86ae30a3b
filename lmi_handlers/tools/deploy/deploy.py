"""`lmi deploy`: reads what is there, plans, checks the plan, and carries it out or prints it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from backends import registry
from lmi_handlers.config.properties import LoadedProperties, load_properties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import tell
from lmi_handlers.core.terminal import show, show_error
from lmi_handlers.migration.vllm_variables import given_to_vllm
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall, as_printed, mistakes
from lmi_handlers.tools.client.errors import CallRefused
from lmi_handlers.tools.deploy.autoscaling import queue_environment
from lmi_handlers.tools.deploy.deployment import Deployment, check_image_region, s3_url
from lmi_handlers.tools.deploy.inventory import (
    Inventory,
    is_ours,
    scalable_targets,
    scaling_policies,
    take_inventory,
    unused,
)
from lmi_handlers.tools.deploy.permissions import denied, needed_permissions
from lmi_handlers.tools.deploy.plan import Existing, in_service, plan
from lmi_handlers.tools.deploy.run import run
from lmi_handlers.tools.deploy.sizing import assumed_options, choose, may_have_gpus
from lmi_handlers.tools.deploy.undeploy import clean_up
from lmi_handlers.tools.deploy.upload import Upload, missing, plan_upload


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line that do not describe the endpoint itself."""

    model_dir: Path | None
    upload_to: str | None
    follow_links: bool
    max_model_len: int | None
    concurrency: int | None
    update: bool
    wait: bool
    keep_failed: bool
    keep_model_data: bool
    dry_run: bool
    check_role: bool


def deploy(options: Mapping[str, Any], how: Run) -> None:
    """Deploy what the options say. Raises `ConfigError` or `CallRefused`."""
    deployment, upload = _deployment(options, how)
    if ignored := deployment.ignored:
        tell("warning", f"without --autoscale, {' and '.join(ignored)} have no effect")
    uploads = [] if upload is None else upload.calls
    if how.dry_run:
        existing = _assumed(deployment, updates=how.update)
        calls = [*uploads, *plan(deployment, existing)]
        _check(calls)
        show(json.dumps([as_printed(call) for call in calls], indent=2))
        _tell_permissions(deployment, calls, check_role=how.check_role)
        return
    aws = Aws(deployment.region)
    check_image_region(deployment.image, aws.region)
    existing = _existing(aws, deployment, take_inventory(aws, deployment.name), updates=how.update)
    calls = list(plan(deployment, existing))
    _check([*uploads, *calls])
    if how.check_role:
        _tell_permissions(deployment, [*uploads, *calls], check_role=True)
    if how.update and not any(call.operation.startswith("update_") for call in calls):
        show("the endpoint has this configuration already (a new image must have a new tag, or be named by digest)")
    if how.wait and not deployment.waits:
        calls.append(in_service(deployment.name))
    try:
        if upload is not None:
            show(f"{len(upload.calls)} files, {upload.size / 1e6:,.1f} MB, go to {upload.folder}")
            run(aws, missing(aws, upload))
        run(aws, calls, keep_failed=how.keep_failed)
    except CallRefused as refused:
        if upload is None:
            raise
        folder = upload.folder
        raise CallRefused(
            f"{refused}\nwhat was copied to S3 is kept; to delete it: aws s3 rm --recursive {folder}"
        ) from refused
    if any(call.until is not None for call in calls) and how.update:
        leftovers = list(unused(aws, take_inventory(aws, deployment.name)))
        clean_up(aws, leftovers, deployment.name, keep_model_data=how.keep_model_data)


def _deployment(options: Mapping[str, Any], how: Run) -> tuple[Deployment, Upload | None]:
    """Return the deployment, and the upload of its model directory."""
    fields = dict(options)
    model_data = None if fields["model_data"] is None else s3_url(fields["model_data"])
    for url in (*fields["adapters"].values(), fields["async_output"], fields["async_failure"]):
        if url is not None:
            s3_url(url)
    upload = None
    given = given_to_vllm(fields["environment"], registry().options)
    loaded = load_properties(how.model_dir, fields["environment"], registry(), given)
    if how.model_dir is not None:
        if model_data is not None:
            raise ConfigError("--model-dir and --model-data exclude each other")
        if how.upload_to is None:
            raise ConfigError("--model-dir needs --upload-to, the S3 folder to copy it to")
        upload = plan_upload(how.model_dir, s3_url(how.upload_to), fields["name"], follows_links=how.follow_links)
        model_data = upload.folder
    if fields["autoscale"] == "queue":
        named = any(setting.key == "option.model_name" for setting in loaded.explicit)
        name = loaded.properties.model_name if named else None
        part = fields["component"] or fields["base_component"]
        variables = queue_environment(fields["name"], fields["variant_name"], name or part or fields["name"])
        fields["environment"] = fields["environment"] | variables
    if fields["base_component"] is None:
        _size(fields, loaded, how)
    return Deployment(**fields | {"model_data": model_data, "uploaded": upload is not None}), upload


def _size(fields: dict[str, Any], loaded: LoadedProperties, how: Run) -> None:
    """Fill in the instance type and the GPUs of a component, and tell the server what they were chosen for."""
    sizes = {"max_model_len": how.max_model_len, "batch": how.concurrency}
    component, named, degree = fields["component"], fields["instance_type"] is not None, None
    if not named or (component and fields["accelerators"] is None):
        fields["instance_type"], degree = choose(loaded, how.model_dir, fields["instance_type"], **sizes)
    if fields["accelerators"] is not None or (fields["existing_endpoint"] and not named):
        degree = None  # the server takes all GPUs of a copy; the GPUs of an existing endpoint are not known here
    if component and fields["accelerators"] is None:
        fields["accelerators"] = degree
        if degree is None and may_have_gpus(fields["instance_type"]):
            show_error(f"{component} gets no GPU, because --accelerators is missing")
    options = assumed_options(loaded, **sizes, degree=degree)
    fields["environment"] |= {f"OPTION_{name.upper()}": str(value) for name, value in options.items()}


def _check(calls: list[AwsCall]) -> None:
    """Raise `ConfigError` with everything that AWS would refuse."""
    found = [mistake for call in calls for mistake in mistakes(call)]
    if found:
        raise ConfigError("\n".join(dict.fromkeys(found)))


def _assumed(deployment: Deployment, *, updates: bool) -> Existing:
    """Return what exists, as far as the options say it: a dry run asks nobody."""
    if not updates:
        return Existing()
    names = frozenset(filter(None, (deployment.component, *deployment.adapters)))
    return Existing(configuration="", components=names)


def _existing(aws: Aws, deployment: Deployment, inventory: Inventory, *, updates: bool) -> Existing:
    """Return what exists. Raises `CallRefused` if the options do not allow that."""
    endpoint, name = inventory.endpoint, deployment.name
    components = frozenset(item["InferenceComponentName"] for item in inventory.components)
    if endpoint is None:
        if updates or not deployment.makes_endpoint:
            raise CallRefused(f"there is no endpoint {name} in this region")
        return Existing()
    if not updates and deployment.makes_endpoint:
        raise CallRefused(f"the endpoint {name} exists already ({inventory.status}); add --update to change it")
    if not is_ours(aws, endpoint["EndpointArn"], name):
        raise CallRefused(f"the endpoint {name} was not made by lmi deploy (it has no tag lmi:deployment={name})")
    named = components & {deployment.component, *deployment.adapters}
    if named and not updates:
        raise CallRefused(f"the inference component {sorted(named)[0]} exists already; add --update to change it")
    targets = [item["ResourceId"] for item in scalable_targets(aws, inventory)]
    return Existing(
        configuration=endpoint["EndpointConfigName"],
        components=components,
        scales=any(resource.startswith("endpoint/") for resource in targets),
        policies=frozenset(policy for resource in targets for policy in scaling_policies(aws, resource)),
    )


def _tell_permissions(deployment: Deployment, calls: list[AwsCall], *, check_role: bool) -> None:
    permissions = needed_permissions(deployment, calls)
    if not check_role:
        show_error(f"you need these permissions: {', '.join(sorted(permissions.caller))}")
        if permissions.role:
            show_error(f"the role needs these permissions: {', '.join(sorted(permissions.role))}")
        return
    found = denied(Aws(deployment.region), deployment, permissions)
    if found:
        raise ConfigError("\n".join(found))
    show_error("you and the role have all permissions that are needed")
