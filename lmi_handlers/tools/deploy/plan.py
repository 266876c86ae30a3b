"""The calls that make a deployment, in order. Nothing is sent from here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.deploy.autoscaling import autoscaling_calls
from lmi_handlers.tools.deploy.deployment import UPLOAD_TAG, Deployment, model_data_source
from lmi_handlers.tools.deploy.run import IN_SERVICE


class Existing(msgspec.Struct, frozen=True):
    """The parts of a deployment that exist before it is made: its endpoint's configuration, and the names of components.

    `scales` says that the endpoint's instances scale, and `policies` has the names of all scaling policies.
    """

    configuration: str | None = None
    components: frozenset[str] = frozenset()
    scales: bool = False
    policies: frozenset[str] = frozenset()


def plan(deployment: Deployment, existing: Existing) -> Iterator[AwsCall]:
    """Yield the calls in order. What exists is updated.

    Names of models and configurations end with a digest of their parameters, so an update has new names, and what an
    interrupted run has left is used again.
    """
    model = ""
    if deployment.makes_model:
        create_model = _create_model(deployment)
        model = create_model.parameters["ModelName"]
        yield create_model
    if deployment.makes_endpoint:
        yield from _endpoint_calls(deployment, model, existing)
    if deployment.waits or not deployment.makes_endpoint:
        yield in_service(deployment.name)
    yield from _component_calls(deployment, model, existing)
    yield from autoscaling_calls(deployment, existing.policies)


def in_service(endpoint: str) -> AwsCall:
    """The call that is repeated until the endpoint is in service."""
    return AwsCall("sagemaker", "describe_endpoint", {"EndpointName": endpoint}, until=IN_SERVICE)


def _create_model(deployment: Deployment) -> AwsCall:
    container: dict[str, Any] = {"Image": deployment.image}
    if deployment.environment:
        container["Environment"] = dict(deployment.environment)
    tags = deployment.aws_tags
    if deployment.model_data is not None:
        container["ModelDataSource"] = {"S3DataSource": model_data_source(deployment.model_data)}
        if deployment.uploaded:
            tags += [{"Key": UPLOAD_TAG, "Value": str(deployment.model_data)}]
    parameters = {
        "ExecutionRoleArn": deployment.role,
        "PrimaryContainer": container,
        "EnableNetworkIsolation": deployment.network_isolation,
        **_network(deployment),
        "Tags": tags,
    }
    return _named(deployment, "create_model", "ModelName", parameters)


def _network(deployment: Deployment) -> dict[str, Any]:
    if not deployment.subnets:
        return {}
    return {
        "VpcConfig": {"SecurityGroupIds": list(deployment.security_groups), "Subnets": list(deployment.subnets)},
    }


def _endpoint_calls(deployment: Deployment, model: str, existing: Existing) -> Iterator[AwsCall]:
    create_config = _create_config(deployment, model)
    configuration = create_config.parameters["EndpointConfigName"]
    if configuration == existing.configuration:
        return
    yield create_config
    names = {"EndpointName": deployment.name, "EndpointConfigName": configuration}
    if existing.configuration is None:
        yield AwsCall("sagemaker", "create_endpoint", names | {"Tags": deployment.aws_tags})
    else:
        # Autoscaling has found the number of instances that is needed.
        kept = {"RetainAllVariantProperties": True} if deployment.autoscale or existing.scales else {}
        yield AwsCall("sagemaker", "update_endpoint", names | kept | _update_policy(deployment))


def _create_config(deployment: Deployment, model: str) -> AwsCall:
    # Running requests are what keeps a language model busy, so the default sends each to the instance with the fewest.
    variant: dict[str, Any] = {
        "VariantName": deployment.variant_name,
        "InstanceType": deployment.instance_type,
        "InitialInstanceCount": deployment.instance_count,
        "RoutingConfig": {"RoutingStrategy": deployment.routing_strategy},
    }
    configuration: dict[str, Any] = {"ProductionVariants": [variant]}
    if deployment.component is None:
        variant |= {"ModelName": model, **_timeouts(deployment)}
    else:  # components bring their own models; the role and the network are the endpoint's
        configuration |= {
            "ExecutionRoleArn": deployment.role,
            "EnableNetworkIsolation": deployment.network_isolation,
            **_network(deployment),
        }
    optional = {
        "VolumeSizeInGB": deployment.volume_size,
        "InferenceAmiVersion": deployment.inference_ami_version,
        "EnableSSMAccess": deployment.ssm_access or None,
        "CapacityReservationConfig": deployment.capacity_reservation
        and {
            "CapacityReservationPreference": "capacity-reservations-only",
            "MlReservationArn": deployment.capacity_reservation,
        },
        "ManagedInstanceScaling": _instance_scaling(deployment),
    }
    variant |= {key: value for key, value in optional.items() if value is not None}
    if deployment.kms_key is not None:
        configuration["KmsKeyId"] = deployment.kms_key
    if deployment.async_output is not None:
        configuration["AsyncInferenceConfig"] = _async_inference(deployment)
    configuration["Tags"] = deployment.aws_tags
    return _named(deployment, "create_endpoint_config", "EndpointConfigName", configuration)


def _timeouts(deployment: Deployment) -> dict[str, int]:
    return {
        "ModelDataDownloadTimeoutInSeconds": deployment.download_timeout,
        "ContainerStartupHealthCheckTimeoutInSeconds": deployment.startup_timeout,
    }


def _instance_scaling(deployment: Deployment) -> dict[str, Any] | None:
    bounds = {"MinInstanceCount": deployment.min_instances, "MaxInstanceCount": deployment.max_instances}
    given = {key: value for key, value in bounds.items() if value is not None}
    return {"Status": "ENABLED", **given} if given else None


def _async_inference(deployment: Deployment) -> dict[str, Any]:
    output: dict[str, Any] = {"S3OutputPath": deployment.async_output}
    if deployment.kms_key is not None:
        output["KmsKeyId"] = deployment.kms_key
    if deployment.async_failure is not None:
        output["S3FailurePath"] = deployment.async_failure
    topics = {"SuccessTopic": deployment.async_success_topic, "ErrorTopic": deployment.async_error_topic}
    notification: dict[str, Any] = {key: value for key, value in topics.items() if value is not None}
    if deployment.async_include_response:
        notification["IncludeInferenceResponseIn"] = [
            {"SuccessTopic": "SUCCESS_NOTIFICATION_TOPIC", "ErrorTopic": "ERROR_NOTIFICATION_TOPIC"}[key]
            for key in notification
        ]
    config: dict[str, Any] = {"OutputConfig": output | ({"NotificationConfig": notification} if notification else {})}
    if deployment.async_max_concurrent is not None:
        config["ClientConfig"] = {"MaxConcurrentInvocationsPerInstance": deployment.async_max_concurrent}
    return config


def _update_policy(deployment: Deployment) -> dict[str, Any]:
    """Return how an endpoint changes over to a new configuration. SageMaker's own default is blue/green, all at once."""
    if deployment.update_strategy == "all-at-once" and not deployment.rollback_alarms:
        return {}
    size = {"Type": "CAPACITY_PERCENT", "Value": deployment.update_percent}
    wait = {"WaitIntervalInSeconds": deployment.update_interval}
    policy: dict[str, Any]
    if deployment.update_strategy == "rolling":
        policy = {"RollingUpdatePolicy": {"MaximumBatchSize": size, **wait}}
    else:
        shift = {"canary": {"CanarySize": size}, "linear": {"LinearStepSize": size}}.get(deployment.update_strategy, {})
        kind = deployment.update_strategy.replace("-", "_").upper()
        policy = {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {"Type": kind, **wait, **shift}}}
    if deployment.rollback_alarms:
        alarms = [{"AlarmName": name} for name in deployment.rollback_alarms]
        policy["AutoRollbackConfiguration"] = {"Alarms": alarms}
    return {"DeploymentConfig": policy}


def _component_calls(deployment: Deployment, model: str, existing: Existing) -> Iterator[AwsCall]:
    """Yield the calls for the component, and then for its adapters, which need it in service."""
    base = deployment.component or deployment.base_component
    if deployment.component is not None:
        needs: dict[str, Any] = {"MinMemoryRequiredInMb": deployment.memory}
        if deployment.accelerators is not None:
            needs["NumberOfAcceleratorDevicesRequired"] = deployment.accelerators
        if deployment.cpus is not None:
            needs["NumberOfCpuCoresRequired"] = deployment.cpus
        specification = {
            "ModelName": model,
            "ComputeResourceRequirements": needs,
            "StartupParameters": _timeouts(deployment),
        }
        yield from _put_component(deployment, deployment.component, specification, existing)
    for name, url in deployment.adapters.items():
        adapter = {"BaseInferenceComponentName": base, "Container": {"ArtifactUrl": url}}
        yield from _put_component(deployment, name, adapter, existing)


def _put_component(
    deployment: Deployment, name: str, specification: Mapping[str, Any], existing: Existing
) -> Iterator[AwsCall]:
    named = {"InferenceComponentName": name, "Specification": specification}
    updates = name in existing.components
    # An adapter is wherever its base is, and autoscaling may have changed the number of copies.
    if "ModelName" in specification and not (updates and deployment.copies is None):
        named["RuntimeConfig"] = {"CopyCount": 1 if deployment.copies is None else deployment.copies}
    if updates:
        yield AwsCall("sagemaker", "update_inference_component", named)
    else:
        made = {"EndpointName": deployment.name, "VariantName": deployment.variant_name, "Tags": deployment.aws_tags}
        if "ModelName" not in specification:
            del made["VariantName"]
        yield AwsCall("sagemaker", "create_inference_component", named | made)
    yield AwsCall("sagemaker", "describe_inference_component", {"InferenceComponentName": name}, until=IN_SERVICE)


def _named(deployment: Deployment, operation: str, key: str, parameters: Mapping[str, Any]) -> AwsCall:
    """Return the call with a name that depends on its parameters."""
    digest = hashlib.sha256(msgspec.json.encode(parameters, order="deterministic")).hexdigest()[:8]
    return AwsCall("sagemaker", operation, {key: f"{deployment.name}-{digest}", **parameters})
