"""The IAM actions that a deployment needs, and whether the roles have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from lmi_handlers.model_files.s3_url import S3Url
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.client.errors import CallRefused
from lmi_handlers.tools.deploy.deployment import Deployment, s3_url
from lmi_handlers.tools.deploy.run import inverse

_ALWAYS = (
    "application-autoscaling:DescribeScalableTargets",
    "application-autoscaling:DescribeScalingPolicies",
    "sagemaker:AddTags",
    "sagemaker:DescribeEndpoint",
    "sagemaker:DescribeEndpointConfig",
    "sagemaker:ListEndpointConfigs",
    "sagemaker:ListInferenceComponents",
    "sagemaker:ListModels",
    "sagemaker:ListTags",
)
_AUTOSCALING = (
    "cloudwatch:DeleteAlarms",
    "cloudwatch:DescribeAlarms",
    "cloudwatch:PutMetricAlarm",
    "iam:CreateServiceLinkedRole",
)
"""Of the caller, for target tracking: https://docs.aws.amazon.com/sagemaker/latest/dg/endpoint-auto-scaling-prerequisites.html"""

_CONTEXT = {
    "iam:PassRole": ("iam:PassedToService", "sagemaker.amazonaws.com"),
    "iam:CreateServiceLinkedRole": ("iam:AWSServiceName", "sagemaker.application-autoscaling.amazonaws.com"),
}
"""Values of the condition keys for these actions in our calls: AWS's own policies name the service."""

_LOGS_AND_METRICS = (
    "cloudwatch:PutMetricData",
    "logs:CreateLogGroup",
    "logs:CreateLogStream",
    "logs:DescribeLogStreams",
    "logs:PutLogEvents",
)
_IMAGE = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:GetAuthorizationToken",
    "ecr:GetDownloadUrlForLayer",
)
_VPC = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)
"""Of the execution role: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html (CreateModel)"""


Actions = dict[str, tuple[str, ...]]
"""IAM action -> the ARNs that it is needed for. Buckets, objects and the role are named, everything else is "*"."""

_ALL: tuple[str, ...] = ("*",)


class Permissions(msgspec.Struct, frozen=True):
    """Permissions of the user of `lmi deploy` and `lmi undeploy`, and of the endpoint's role."""

    caller: Actions
    role: Actions


def needed_permissions(deployment: Deployment, calls: Iterable[AwsCall]) -> Permissions:
    """Return what a plan needs, including taking it back and deleting it later."""
    caller = dict.fromkeys(_ALWAYS, _ALL)
    for call in calls:
        if call.service != "s3":
            caller |= {_action(made): _ALL for made in (call, inverse(call)) if made is not None}
    if deployment.uploaded:
        arns = _Arns(deployment, [deployment.model_data])
        caller |= {"s3:ListBucket": arns.buckets, "s3:PutObject": arns.objects}
        caller |= {
            "s3:GetObject": arns.objects,
            "s3:DeleteObject": arns.objects,
        }  # who deletes an object looks at it first
    if deployment.role:
        caller["iam:PassRole"] = (deployment.role,)
    if deployment.autoscale:
        caller |= dict.fromkeys(_AUTOSCALING, _ALL)
    return Permissions(caller, _role_actions(deployment))


def _role_actions(deployment: Deployment) -> Actions:
    if deployment.role is None:
        return {}
    actions = dict.fromkeys((*_LOGS_AND_METRICS, *_IMAGE), _ALL)
    read = _Arns(deployment, [deployment.model_data, *map(s3_url, deployment.adapters.values())])
    if read.objects:
        actions |= {"s3:GetObject": read.objects, "s3:ListBucket": read.buckets}
    if deployment.async_output:
        failure = deployment.async_failure
        written = _Arns(deployment, [s3_url(deployment.async_output), None if failure is None else s3_url(failure)])
        actions |= {"s3:PutObject": written.objects}
    if deployment.async_success_topic or deployment.async_error_topic:
        actions["sns:Publish"] = _ALL
    if deployment.kms_key:
        actions |= dict.fromkeys(("kms:CreateGrant", "kms:Decrypt", "kms:GenerateDataKey"), _ALL)
    if deployment.subnets:
        actions |= dict.fromkeys(_VPC, _ALL)
    return actions


class _Arns:
    """ARNs of S3 URLs, of which some may be None."""

    def __init__(self, deployment: Deployment, urls: Iterable[S3Url | None]) -> None:
        partition = str(deployment.role).split(":")[1] if deployment.role else "aws"
        given = [url for url in urls if url is not None]
        self.buckets = tuple(dict.fromkeys(f"arn:{partition}:s3:::{url.bucket}" for url in given))
        self.objects = tuple(dict.fromkeys(f"arn:{partition}:s3:::{url.bucket}/{url.key}*" for url in given))


def _action(call: AwsCall) -> str:
    """Return the IAM action of a call, such as "sagemaker:CreateModel". Its prefix is the service's name in all of ours."""
    return f"{call.service}:{call.api_name}"


def denied(aws: Aws, deployment: Deployment, permissions: Permissions) -> list[str]:
    """Return what the caller and the role may not do, one line per principal, by IAM's simulator. Raises `CallRefused`.

    The simulator knows the policies of a principal and of its organisation, not those of buckets, keys and topics.
    """
    caller = _role_of(aws(AwsCall("sts", "get_caller_identity", {}))["Arn"])
    found = []
    for principal, actions in ((caller, permissions.caller), (deployment.role, permissions.role)):
        refusals = [] if principal is None else sorted(_refusals(aws, principal, actions))
        if refusals:
            found.append(f"{principal} may not {', '.join(refusals)}")
    return found


def _refusals(aws: Aws, principal: str, actions: Actions) -> Iterator[str]:
    """Yield the actions that the principal may not perform on all that they are needed for."""
    groups: dict[tuple[tuple[str, ...], tuple[str, str] | None], list[str]] = {}
    for action, needed in actions.items():
        groups.setdefault((needed, _CONTEXT.get(action)), []).append(action)
    for (resources, context), names in groups.items():
        parameters: dict[str, Any] = {
            "PolicySourceArn": principal,
            "ActionNames": names,
            "ResourceArns": list(resources),
        }
        if context is not None:
            key, value = context
            entry = {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            parameters["ContextEntries"] = [entry]
        try:
            results = aws(AwsCall("iam", "simulate_principal_policy", parameters))["EvaluationResults"]
        except CallRefused as refused:
            raise CallRefused(f"--check-role needs iam:SimulatePrincipalPolicy: {refused}") from refused
        yield from dict.fromkeys(item["EvalActionName"] for item in results if item["EvalDecision"] != "allowed")


def _role_of(arn: str) -> str:
    """Return the role of an assumed role's ARN, and any other ARN unchanged. The path of a role is not in such an ARN."""
    match = re.fullmatch(r"arn:(aws[a-z-]*):sts::(\d+):assumed-role/([^/]+)/.*", arn)
    return arn if match is None else f"arn:{match[1]}:iam::{match[2]}:role/{match[3]}"
