"""Application Auto Scaling for an endpoint's instances or a component's copies."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lmi_handlers.telemetry.emf import MODEL
from lmi_handlers.telemetry.settings import TelemetrySettings
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.deploy.deployment import Deployment

QUEUE_METRIC = "SequencesWaiting"
"""The server's own metric, by its name in CloudWatch (`telemetry/emf.py`)."""

_MODEL_NAME = "OPTION_MODEL_NAME"
_METRICS = ("invocations", "concurrency", "queue", "backlog")

_PREDEFINED = {
    ("invocations", False): "SageMakerVariantInvocationsPerInstance",
    ("concurrency", False): "SageMakerVariantConcurrentRequestsPerModelHighResolution",
    ("invocations", True): "SageMakerInferenceComponentInvocationsPerCopy",
    ("concurrency", True): "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution",
}
"""(metric, of a component) -> name in Application Auto Scaling. Invocations are per minute."""


def target(endpoint: str, variant: str, component: str | None) -> dict[str, str]:
    """Return the parameters that name what is scaled."""
    if component is not None:
        resource, dimension = f"inference-component/{component}", "inference-component:DesiredCopyCount"
    else:
        resource, dimension = f"endpoint/{endpoint}/variant/{variant}", "variant:DesiredInstanceCount"
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": resource,
        "ScalableDimension": f"sagemaker:{dimension}",
    }


def autoscaling_calls(deployment: Deployment, policies: Collection[str]) -> list[AwsCall]:
    """Return the calls that register the target and its policy. `policies` are the names of those that exist.

    There is one policy: with several, the one that asks for most instances would take precedence. Former versions of
    `lmi deploy` named it after its metric.
    """
    if deployment.autoscale is None:
        return []
    scaled = target(deployment.name, deployment.variant_name, deployment.component or deployment.base_component)
    bounds = {"MinCapacity": deployment.min_capacity, "MaxCapacity": deployment.max_capacity}
    policy = {
        "TargetValue": deployment.autoscale_target,
        "ScaleInCooldown": deployment.scale_in_cooldown,
        "ScaleOutCooldown": deployment.scale_out_cooldown,
        **_metric(deployment),
    }
    service = "application-autoscaling"
    return [
        AwsCall(service, "register_scalable_target", scaled | bounds),
        AwsCall(
            service,
            "put_scaling_policy",
            scaled
            | {
                "PolicyName": f"{deployment.name}-autoscaling",
                "PolicyType": "TargetTrackingScaling",
                "TargetTrackingScalingPolicyConfiguration": policy,
            },
        ),
        *(
            AwsCall(service, "delete_scaling_policy", scaled | {"PolicyName": former})
            for former in (f"{deployment.name}-{metric}" for metric in _METRICS)
            if former in policies
        ),
    ]


def _metric(deployment: Deployment) -> dict[str, Any]:
    of_component = (deployment.component or deployment.base_component) is not None
    predefined = _PREDEFINED.get((str(deployment.autoscale), of_component))
    if predefined is not None:
        return {"PredefinedMetricSpecification": {"PredefinedMetricType": predefined}}
    if deployment.autoscale == "backlog":
        namespace, name = "AWS/SageMaker", "ApproximateBacklogSizePerInstance"
        dimensions = {"EndpointName": deployment.name}
    else:
        environment = deployment.environment
        # What OpenTelemetry's variables need is in the image, not necessarily here.
        telemetry = TelemetrySettings.from_environ(
            {key: value for key, value in environment.items() if not key.startswith("OTEL_")}
        )
        namespace, name = telemetry.emf_namespace, QUEUE_METRIC
        dimensions = {MODEL: environment[_MODEL_NAME]} | telemetry.emf_dimensions
    return {
        "CustomizedMetricSpecification": {
            "Namespace": namespace,
            "MetricName": name,
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            "Statistic": "Average",
        }
    }


def queue_environment(endpoint: str, variant: str, model_name: str) -> dict[str, str]:
    """Return the variables that make the server publish its queue to CloudWatch, with dimensions that are known here."""
    return {
        "LMI_EMF": "true",
        "SAGEMAKER_ENDPOINT_NAME": endpoint,
        "SAGEMAKER_VARIANT_NAME": variant,
        _MODEL_NAME: model_name,
    }
