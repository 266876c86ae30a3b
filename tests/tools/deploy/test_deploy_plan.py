"""`lmi deploy --dry-run`: which calls it prints, that AWS's own description allows them, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from facts import says, tell
from hypothesis import given, settings
from hypothesis import strategies as st
from lmi_command import lmi
from paths import DATA

from lmi_handlers.tools.client.calls import AwsCall, as_printed, mistakes

PLANS = DATA / "deploy"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/lmi-handlers:1"
ROLE = "arn:aws:iam::123456789012:role/sagemaker"
REQUIRED = ("--name", "my-model", "--image", IMAGE, "--role", ROLE)
TOPIC = "arn:aws:sns:us-east-1:123456789012:topic"


def dry_run(*arguments: str) -> list[dict[str, Any]]:
    result = lmi("deploy", *REQUIRED, *arguments, "--dry-run")
    assert result.exit_code == 0, result.output
    calls: list[dict[str, Any]] = json.loads(result.stdout)
    return calls


def operations(calls: list[dict[str, Any]]) -> list[str]:
    return [call["operation"] for call in calls]


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (
            ("--model-data", "s3://bucket/prefix", "--env", "OPTION_DTYPE=bf16"),
            {"S3Uri": "s3://bucket/prefix/", "S3DataType": "S3Prefix", "CompressionType": "None"},
        ),
        (
            ("--model-data", "s3://bucket/model.tar.gz", "--volume-size", "100", "--network-isolation"),
            {"S3Uri": "s3://bucket/model.tar.gz", "S3DataType": "S3Object", "CompressionType": "Gzip"},
        ),
        (("--env", "HF_MODEL_ID=org/name", "--env", "OPTION_X=a=b"), None),
    ],
)
def test_a_model_a_configuration_and_an_endpoint(arguments: tuple[str, ...], source: dict[str, str] | None) -> None:
    calls = dry_run(*arguments)
    assert operations(calls) == ["create_model", "create_endpoint_config", "create_endpoint"]
    container = calls[0]["parameters"]["PrimaryContainer"]
    assert container.get("ModelDataSource") == (None if source is None else {"S3DataSource": source})
    if source is None:
        assert container["Environment"] == {"HF_MODEL_ID": "org/name", "OPTION_X": "a=b"}
    model, configuration = calls[0]["parameters"]["ModelName"], calls[1]["parameters"]
    assert configuration["ProductionVariants"][0]["ModelName"] == model
    assert calls[2]["parameters"]["EndpointConfigName"] == configuration["EndpointConfigName"]


def test_the_model_directory_is_uploaded_and_what_is_secret_is_not_printed(tmp_path: Path) -> None:
    """The calls are those in tests/data/deploy/everything.json. Folders and names depend on the files' times."""
    model = tmp_path / "model"
    (model / "__pycache__").mkdir(parents=True)
    for name in ("serving.properties", "model.py", "__pycache__/model.pyc", ".hidden"):
        (model / name).write_text("# nothing")
        os.utime(model / name, (1_700_000_000, 1_700_000_000))
    options = [
        *("--model-dir", str(model), "--upload-to", "s3://bucket/models", "--instance-type", "ml.g5.2xlarge"),
        *("--env", "HF_TOKEN=hf_secret", "--env", "OPTION_X=https://user:secret@host/", "--tag", "team=search"),
        *("--subnet", "subnet-1", "--security-group", "sg-1", "--kms-key", "alias/key", "--instance-count", "2"),
        *("--inference-ami-version", "al2-ami-sagemaker-inference-gpu-3-1", "--volume-size", "100", "--ssm-access"),
        *("--async-output", "s3://bucket/out", "--async-failure", "s3://bucket/failed", "--async-max-concurrent", "4"),
        *("--async-success-topic", TOPIC, "--async-include-response", "--autoscale", "backlog"),
        *("--autoscale-target", "5", "--startup-timeout", "3600", "--download-timeout", "60"),
    ]
    result = lmi("deploy", *REQUIRED, *options, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    assert json.loads(result.stdout.replace(str(model), "MODEL")) == json.loads(
        (PLANS / "everything.json").read_bytes()
    )
    assert says(result.stderr, "you permissions application-autoscaling:DeregisterScalableTarget")
    assert "iam:PassRole" in result.stderr
    assert says(result.stderr, "role permissions cloudwatch:PutMetricData ec2:CreateNetworkInterface")
    assert "sns:Publish" in result.stderr


def test_links_in_the_model_directory_are_followed(tmp_path: Path) -> None:
    model, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    (model / "code").mkdir(parents=True)
    (elsewhere / "part").mkdir(parents=True)
    (elsewhere / "part" / "weights").write_text("1")
    (model / "linked").symlink_to(elsewhere)
    here: tuple[str, ...] = (
        "--model-dir",
        str(model),
        "--upload-to",
        "s3://bucket/models",
        "--instance-type",
        "ml.g5.2xlarge",
    )
    refused = lmi("deploy", *REQUIRED, *here, "--dry-run")
    assert refused.exit_code == 1
    assert says(refused.stderr, f"{model}/linked {elsewhere} {model} --follow-links")
    here = (*here, "--follow-links")
    files = [call["parameters"]["Key"] for call in dry_run(*here) if call["operation"] == "put_object"]
    assert [file.split("/", 3)[3] for file in files] == ["linked/part/weights"]
    cases = {"nothing": "neither a file nor a link to one", "..": "which it is in itself", "linked": "in itself"}
    for target, cause in cases.items():
        link = (elsewhere / "part" if target == "linked" else model / "code") / "link"
        link.symlink_to(model / target)
        result = lmi("deploy", *REQUIRED, *here, "--dry-run")
        assert (result.exit_code, cause in result.stderr) == (1, True)
        link.unlink()


def test_a_component_with_adapters_that_scales_by_the_servers_own_queue() -> None:
    result = dry_run(
        *("--model-data", "s3://bucket/model/", "--component", "llama", "--accelerators", "1", "--cpus", "2"),
        *(
            "--memory",
            "16384",
            "--copies",
            "2",
            "--adapter",
            "german=s3://bucket/german.tar.gz",
            "--max-instances",
            "4",
        ),
        *(
            "--autoscale",
            "queue",
            "--autoscale-target",
            "3",
            "--max-capacity",
            "8",
            "--instance-type",
            "ml.g6e.12xlarge",
        ),
    )
    assert result == json.loads((PLANS / "component.json").read_bytes())


def test_an_update_changes_the_endpoint_and_names_new_models() -> None:
    first = dry_run("--model-data", "s3://bucket/one/")
    update = dry_run(
        "--model-data", "s3://bucket/two/", "--update", "--update-strategy", "canary", "--update-percent", "10"
    )
    assert operations(update) == ["create_model", "create_endpoint_config", "update_endpoint"]
    assert "DeploymentConfig" not in dry_run("--model-data", "s3://bucket/two/", "--update")[2]["parameters"]
    assert update[0]["parameters"]["ModelName"] != first[0]["parameters"]["ModelName"]
    assert update[2]["parameters"]["DeploymentConfig"] == {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": {
                "Type": "CANARY",
                "WaitIntervalInSeconds": 120,
                "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
            }
        }
    }
    assert dry_run("--model-data", "s3://bucket/one/") == first
    component = ("--model-data", "s3://bucket/one/", "--component", "llama", "--update")
    kept, changed = dry_run(*component)[4]["parameters"], dry_run(*component, "--copies", "3")[4]["parameters"]
    assert (kept.get("RuntimeConfig"), changed["RuntimeConfig"]) == (None, {"CopyCount": 3})  # autoscaling's number


def test_only_adapters_for_a_component_that_runs() -> None:
    adapter = ("--base-component", "llama", "--adapter", "german=s3://bucket/german.tar.gz")
    result = lmi("deploy", "--name", "my-model", *adapter, "--dry-run")
    calls = json.loads(result.stdout)
    assert operations(calls) == ["describe_endpoint", "create_inference_component", "describe_inference_component"]
    assert calls[1]["parameters"]["Specification"]["BaseInferenceComponentName"] == "llama"


# Every combination of options gives calls that AWS's description of its services allows.

FLAGS = {
    "--network-isolation": None,
    "--ssm-access": None,
    "--update": None,
    "--kms-key": ["alias/key"],
    "--volume-size": ["1", "512"],
    "--instance-count": ["1", "20"],
    "--variant-name": ["blue"],
    "--inference-ami-version": ["al2-ami-sagemaker-inference-gpu-3-1"],
    "--routing-strategy": ["RANDOM"],
    "--startup-timeout": ["60", "3600"],
    "--download-timeout": ["60", "3600"],
    "--capacity-reservation": ["arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan"],
    "--tag": ["team=Suche & Größe".replace(" & ", " "), "a="],
    "--env": ["HF_TOKEN=x", "A=="],
    "--update-strategy": ["all-at-once", "canary", "linear", "rolling"],
    "--update-percent": ["10", "50"],
    "--rollback-alarm": ["errors"],
}
GROUPS = [
    ("--subnet", "subnet-1", "--security-group", "sg-1"),
    ("--autoscale", "invocations", "--autoscale-target", "60"),
    ("--autoscale", "concurrency", "--autoscale-target", "0.5", "--max-capacity", "9"),
    ("--autoscale", "queue", "--autoscale-target", "2", "--scale-in-cooldown", "0"),
]
KINDS = [
    (),
    ("--component", "base", "--accelerators", "2", "--min-instances", "0", "--max-instances", "3"),
    ("--component", "base", "--cpus", "0.25", "--copies", "0", "--adapter", "one=s3://bucket/a.tar.gz"),
    ("--component", "base", "--existing-endpoint"),
    ("--async-output", "s3://bucket/out/", "--async-failure", "s3://bucket/failed/"),
    ("--async-output", "s3://bucket/out/", "--async-error-topic", TOPIC, "--async-include-response"),
]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    chosen = [*draw(st.sampled_from(KINDS))]
    for group in draw(st.lists(st.sampled_from(GROUPS), max_size=2, unique_by=lambda group: group[0])):
        chosen += group
    for name in draw(st.lists(st.sampled_from(sorted(FLAGS)), unique=True)):
        values = FLAGS[name]
        chosen += [name] if values is None else [name, draw(st.sampled_from(values))]
    return chosen


@settings(max_examples=40)
@given(command_lines())
def test_calls_are_valid_for_every_combination_of_options(arguments: list[str]) -> None:
    calls = dry_run("--model-data", "s3://bucket/model/", "--instance-type", "ml.g5.xlarge", *arguments)
    assert calls[0]["operation"] == "create_model"
    for call in calls:
        made = AwsCall(call["service"], call["operation"], call["parameters"])
        assert mistakes(made) == []


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ((), ["--model-data --model-dir --env HF_MODEL_ID= name"]),
        (("--env", "NAME"), ["NAME form NAME=VALUE"]),
        (("--model-data", "https://bucket/x"), ["https://bucket/x S3 URL"]),
        (("--model-data", "s3://bucket/x", "--subnet", "s"), ["--subnet --security-group belong"]),
        (("--model-data", "s3://bucket/x", "--name", "n" * 55), ["--name 54 55"]),
        (("--model-data", "s3://bucket/x", "--adapter", "a=s3://bucket/a"), ["--adapter --component"]),
        (("--model-data", "s3://bucket/x", "--autoscale", "queue"), ["--autoscale-target missing"]),
        (
            ("--model-data", "s3://bucket/x", "--autoscale", "backlog", "--autoscale-target", "1"),
            ["--autoscale backlog --async-output"],
        ),
        (
            ("--model-data", "s3://bucket/x", "--autoscale", "queue", "--autoscale-target", "1", "--min-capacity", "3"),
            ["--max-capacity --min-capacity"],
        ),
        (
            (
                "--model-data",
                "s3://bucket/x",
                "--autoscale",
                "backlog",
                "--async-output",
                "s3://bucket/y",
                "--min-capacity",
                "0",
            ),
            ["--autoscale-target missing", "--min-capacity 1 no"],
        ),
        (("--model-data", "s3://bucket/x", "--async-success-topic", TOPIC), ["--async-output missing"]),
        (("--model-data", "s3://bucket/x", "--existing-endpoint"), ["--existing-endpoint --component"]),
        (("--model-data", "s3://bucket/x", "--tag", "lmi:deployment=x"), ["set deploy itself"]),
        (
            ("--model-data", "s3://bucket/x", "--async-output", "bucket/x", "--autoscale", "backlog"),
            ["bucket/x S3 URL"],
        ),
        (
            ("--model-data", "s3://bucket/x", "--region", "eu-west-1"),
            [f"--image {IMAGE} us-east-1 eu-west-1 SageMaker"],
        ),
        (("--model-dir", "/nonexistent", "--upload-to", "s3://bucket/x"), ["/nonexistent exist"]),
        (("--model-data", "s3://bucket/x", "--startup-timeout", "3601"), ["3601 range 60<=x<=3600"]),
        (
            ("--model-data", "s3://bucket/x", "--instance-type", "ml.g5.xlage", "--role", "arn:aws:iam::1:role/x"),
            [
                "CreateEndpointConfig ProductionVariants[0].InstanceType ml.g5.xlage installed boto3 ml.g5.xlarge",
                "CreateModel ExecutionRoleArn arn:aws:iam::1:role/x AWS's",
            ],
        ),
        (("--model-data", "s3://bucket/x", "--env", f"A={'x' * 1025}"), ["1024 characters 1025"]),
    ],
)
def test_options_that_cannot_work_are_refused(arguments: tuple[str, ...], messages: list[str]) -> None:
    result = lmi("deploy", *REQUIRED, *arguments, "--dry-run")
    assert result.exit_code in (1, 2)
    assert not result.stdout
    for message in messages:
        assert says(result.stderr, message)


def test_options_of_autoscaling_without_it_are_told() -> None:
    arguments = ("--model-data", "s3://bucket/x", "--instance-type", "ml.g5.xlarge", "--dry-run")
    result = lmi("deploy", *REQUIRED, *arguments, "--min-capacity", "0", "--scale-in-cooldown", "1")
    assert result.exit_code == 0, result.output
    assert says(result.stderr, "warning --autoscale --min-capacity --scale-in-cooldown no effect")
    scales = lmi(
        "deploy", *REQUIRED, *arguments, "--max-capacity", "3", "--autoscale", "queue", "--autoscale-target", "1"
    )
    assert "no effect" not in scales.stderr + lmi("deploy", *REQUIRED, *arguments).stderr


def test_bounds_of_nested_values_are_checked() -> None:
    variant = {"VariantName": "v", "VolumeSizeInGB": 513}
    tags = [{"Key": "k", "Value": "v"}] * 51
    call = AwsCall(
        "sagemaker",
        "create_endpoint_config",
        {"EndpointConfigName": "c", "ProductionVariants": [variant], "Tags": tags},
    )
    assert tell(
        mistakes(call),
        ["CreateEndpointConfig ProductionVariants[0].VolumeSizeInGB 512 513", "CreateEndpointConfig 50 51"],
    )
    assert mistakes(AwsCall("sagemaker", "create_model", {"Modelname": "x"})) == [
        'CreateModel: Missing required parameter in input: "ModelName"',
        next(line for line in mistakes(AwsCall("sagemaker", "create_model", {"Modelname": "x"})) if "Unknown" in line),
    ]


def test_printed_calls_have_no_secrets() -> None:
    environment = {"API_KEY": "k3y", "MAX_TOKENS": "5", "URL": "https://me:pass@host/?signature=abc"}
    printed = as_printed(AwsCall("sagemaker", "create_model", {"PrimaryContainer": {"Environment": environment}}))
    assert printed["parameters"]["PrimaryContainer"]["Environment"] == {
        "API_KEY": "******",
        "MAX_TOKENS": "5",
        "URL": "https://******@host/?signature=******",
    }
