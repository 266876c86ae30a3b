"""From nothing to an endpoint and back, against moto's SageMaker, Auto Scaling, S3, IAM and CloudWatch Logs."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_server import AwsServer
from click.testing import Result
from facts import says
from lmi_command import lmi
from serving import ENVIRON

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/lmi-handlers:1"
ROLE = "arn:aws:iam::123456789012:role/sagemaker"
PLACE = ("--image", IMAGE, "--role", ROLE, "--instance-type", "ml.g5.xlarge")
MODEL = ("--model-data", "s3://bucket/model/")


@pytest.fixture(scope="module")
def running() -> Iterator[AwsServer]:
    server = AwsServer()
    yield server
    server.stop()


@pytest.fixture
def server(running: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    for name, value in running.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    running.control()
    return running


@functools.cache
def client(server: AwsServer, service: str) -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def deploy(name: str, *arguments: str) -> Result:
    return lmi("deploy", "--name", name, *PLACE, *arguments)


def exists(server: AwsServer, name: str) -> dict[str, list[str]]:
    """Everything of a deployment, by kind."""
    sagemaker = client(server, "sagemaker")
    targets = client(server, "application-autoscaling").describe_scalable_targets(ServiceNamespace="sagemaker")
    found = {
        "endpoints": [item["EndpointName"] for item in sagemaker.list_endpoints()["Endpoints"]],
        "configurations": [item["EndpointConfigName"] for item in sagemaker.list_endpoint_configs()["EndpointConfigs"]],
        "models": [item["ModelName"] for item in sagemaker.list_models()["Models"]],
        "components": [
            item["InferenceComponentName"]
            for item in sagemaker.list_inference_components(EndpointNameEquals=name)["InferenceComponents"]
        ],
        "targets": [item["ResourceId"] for item in targets["ScalableTargets"]],
    }
    return {kind: [item for item in items if name in item or kind == "components"] for kind, items in found.items()}


def nothing(server: AwsServer, name: str) -> bool:
    return not any(exists(server, name).values())


def test_deploy_update_and_undeploy(server: AwsServer, tmp_path: Path) -> None:
    s3 = client(server, "s3")
    s3.create_bucket(Bucket="uploads")
    model = tmp_path / "model"
    model.mkdir()
    (model / "serving.properties").write_text("option.rolling_batch=echo\n")
    (model / "code").mkdir()
    (model / "code" / "model.py").write_text("x = 1\n")
    here = ("--model-dir", str(model), "--upload-to", "s3://uploads/models/")

    def uploaded() -> set[str]:
        return {item["Key"].split("/", 3)[3] for item in s3.list_objects_v2(Bucket="uploads").get("Contents", [])}

    first = deploy("mine", *here, "--autoscale", "invocations", "--autoscale-target", "60", "--max-capacity", "3")
    assert first.exit_code == 0, first.output
    made = exists(server, "mine")
    assert made["endpoints"] == ["mine"]
    assert made["targets"] == ["endpoint/mine/variant/AllTraffic"]
    assert uploaded() == {"serving.properties", "code/model.py"}
    status = lmi("status", "--name", "mine")
    assert status.exit_code == 0
    assert f"endpoint mine: InService (configuration {made['configurations'][0]})" in status.stdout
    assert "variant AllTraffic: 1 of 1 instances" in status.stdout
    assert "autoscaling of endpoint/mine/variant/AllTraffic: 1 to 3" in status.stdout

    again = deploy("mine", *here)
    assert again.exit_code == 1
    assert says(again.stderr, "mine InService --update")
    assert exists(server, "mine") == made

    same = deploy("mine", *here, "--update", "--wait")
    assert says(same.stdout, "endpoint configuration already")
    assert exists(server, "mine") == made

    (model / "serving.properties").write_text("option.rolling_batch=echo\noption.model_name=new\n")
    update = deploy("mine", *here, "--update", "--wait", "--keep-model-data")
    assert update.exit_code == 0, update.output
    assert says(update.stdout, "s3 rm --recursive s3://uploads/models/mine/")
    changed = exists(server, "mine")
    assert [len(changed[kind]) for kind in ("endpoints", "configurations", "models")] == [1, 1, 1]
    assert changed["models"] != made["models"]

    undone = lmi("undeploy", "--name", "mine")
    assert undone.exit_code == 0, undone.output
    assert nothing(server, "mine")
    assert len(uploaded()) == 2  # those of the first, which was to be kept
    assert lmi("undeploy", "--name", "mine").stdout == "nothing is left of mine\n"
    assert lmi("status", "--name", "mine").exit_code == 4


def test_undeploy_deletes_only_what_an_upload_made(server: AwsServer, tmp_path: Path) -> None:
    """Tags may be set by others: neither a foreign bucket nor a foreign object in our folder is deleted."""
    s3, sagemaker = client(server, "s3"), client(server, "sagemaker")
    model = tmp_path / "model"
    model.mkdir()
    (model / "serving.properties").write_text("option.rolling_batch=echo\n")
    for bucket in ("ours", "foreign"):
        s3.create_bucket(Bucket=bucket)
    for key in ("a", "b/c", "tagged/01234567/x"):
        s3.put_object(Bucket="foreign", Key=key, Body=b"precious")
    for url in (
        *("s3://foreign/", "s3://foreign", "s3://foreign/b/", "s3://foreign/tagged/01234567/", "https://foreign/"),
        *("s3://foreign/tagged/01234567/../../", "s3://foreign/tagged/", ""),
    ):
        deployed = deploy("tagged", "--model-dir", str(model), "--upload-to", "s3://ours/models/")
        assert deployed.exit_code == 0, deployed.output
        [name] = exists(server, "tagged")["models"]
        arn = sagemaker.describe_model(ModelName=name)["ModelArn"]
        sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "lmi:uploaded-to", "Value": url}])
        undone = lmi("undeploy", "--name", "tagged")
        assert undone.exit_code == 0, undone.output
        assert nothing(server, "tagged")
        assert len(s3.list_objects_v2(Bucket="foreign")["Contents"]) == 3

    deploy("mixed", "--model-dir", str(model), "--upload-to", "s3://ours/models/")
    folder = next(item["Key"] for item in s3.list_objects_v2(Bucket="ours")["Contents"] if "/mixed/" in item["Key"])
    added = folder.rpartition("/")[0] + "/notes.txt"
    s3.put_object(Bucket="ours", Key=added, Body=b"precious")
    undone = lmi("undeploy", "--name", "mixed")
    assert "1 objects in s3://ours/models/mixed/" in undone.stdout
    assert [item["Key"] for item in s3.list_objects_v2(Bucket="ours", Prefix="models/mixed/")["Contents"]] == [added]


def test_components_and_adapters(server: AwsServer) -> None:
    base = ("--component", "llama", "--accelerators", "1")
    adapter = ("--adapter", "german=s3://bucket/german.tar.gz")
    result = deploy("shared", *MODEL, *base, *adapter)
    assert result.exit_code == 0, result.output
    assert exists(server, "shared")["components"] == ["llama", "german"]
    status = lmi("status", "--name", "shared")
    assert "component llama: InService, 1 of 1 copies\n  adapter (of llama) german: InService" in status.stdout

    more = deploy(
        "shared", "--model-data", "s3://bucket/other/", "--component", "other", "--cpus", "1", "--existing-endpoint"
    )
    assert more.exit_code == 0, more.output
    french = ("--base-component", "llama", "--adapter", "french=s3://bucket/french.tar.gz")
    assert lmi("deploy", "--name", "shared", *french).exit_code == 0
    twice = lmi("deploy", "--name", "shared", *french)
    assert says(twice.stderr, "french exists --update")
    assert exists(server, "shared")["components"] == ["llama", "german", "other", "french"]
    assert len(exists(server, "shared")["models"]) == 2

    updated = deploy("shared", "--model-data", "s3://bucket/newer/", *base, "--update")
    assert updated.exit_code == 0, updated.output
    assert "UpdateInferenceComponent llama" in updated.stdout
    assert len(exists(server, "shared")["models"]) == 2  # the former one is deleted, the other component's is not

    one = lmi("undeploy", "--name", "shared", "--component", "llama")
    assert one.exit_code == 0, one.output
    left = exists(server, "shared")
    assert (left["components"], len(left["models"]), left["endpoints"]) == (["other"], 1, ["shared"])
    assert lmi("undeploy", "--name", "shared").exit_code == 0
    assert nothing(server, "shared")


@pytest.mark.parametrize("operation", ["CreateModel", "CreateEndpointConfig", "CreateEndpoint", "PutScalingPolicy"])
def test_what_was_created_is_deleted_if_a_step_is_refused(server: AwsServer, operation: str) -> None:
    server.control(refuse=[operation])
    result = deploy("broken", *MODEL, "--autoscale", "concurrency", "--autoscale-target", "5")
    assert result.exit_code == 1
    assert f"{operation}: AccessDeniedException: not allowed: {operation}" in result.stderr
    assert ("Nothing was created" if operation == "CreateModel" else "has been deleted again") in result.stderr
    assert nothing(server, "broken")


def test_what_cannot_be_deleted_is_named_and_used_again(server: AwsServer) -> None:
    server.control(refuse=["CreateEndpoint", "DeleteModel"])
    result = deploy("broken", *MODEL)
    [model] = exists(server, "broken")["models"]
    assert says(result.stderr, f"{model} DeleteModel AccessDeniedException")
    server.control()
    result = deploy("broken", *MODEL)
    assert result.exit_code == 0
    assert "exists already" in result.stdout
    assert exists(server, "broken")["models"] == [model]
    assert lmi("undeploy", "--name", "broken").exit_code == 0
    assert nothing(server, "broken")


def test_what_was_copied_to_s3_stays_if_a_step_is_refused(server: AwsServer, tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("")
    here = ("--model-dir", str(tmp_path), "--upload-to", "s3://folder-of-models")
    assert "ListObjectsV2: NoSuchBucket" in deploy("copied", *here).stderr
    s3 = client(server, "s3")
    s3.create_bucket(Bucket="folder-of-models")
    server.control(refuse=["CreateModel"])
    result = deploy("copied", *here)
    [folder] = {item["Key"].rpartition("/")[0] for item in s3.list_objects_v2(Bucket="folder-of-models")["Contents"]}
    assert says(result.stderr, f"s3 --recursive s3://folder-of-models/{folder}/")
    server.control()
    again = deploy("copied", *here)
    assert (again.exit_code, "PutObject" in again.stdout) == (0, False)
    lmi("undeploy", "--name", "copied")
    assert "Contents" not in s3.list_objects_v2(Bucket="folder-of-models")


def test_an_endpoint_that_fails(server: AwsServer) -> None:
    server.control(status="Failed")
    result = deploy("failing", *MODEL, "--wait")
    assert says(result.stderr, "failing Failed container created deleted")
    assert nothing(server, "failing")
    kept = deploy("failing", *MODEL, "--wait", "--keep-failed")
    assert says(kept.stderr, "made kept failing-")
    status = lmi("status", "--name", "failing")
    assert status.exit_code == 1
    assert says(status.stdout, "container not answer")
    assert "lmi logs --name failing" in status.stdout
    assert json.loads(lmi("status", "--name", "failing", "--json").stdout)["endpoint"]["EndpointStatus"] == "Failed"
    lmi("undeploy", "--name", "failing")
    server.control(component="Failed")
    result = deploy("failing", *MODEL, "--component", "part")
    assert says(result.stderr, "part no capacity created deleted")
    assert nothing(server, "failing")


@pytest.mark.parametrize(
    ("lingers", "status"), [(["Failed"], 0), (["Failed", "Deleting"], 0), (["Deleting", "Failed"], 1)]
)
def test_a_failed_endpoint_is_deleted_although_it_is_described_for_a_while(
    server: AwsServer, lingers: list[str], status: int
) -> None:
    server.control(status="Failed")
    assert deploy("late", *MODEL, "--wait", "--keep-failed").exit_code == 1
    server.control(lingers=lingers)
    undone = lmi("undeploy", "--name", "late")
    assert undone.exit_code == status, undone.output
    server.control()
    lmi("undeploy", "--name", "late")
    assert nothing(server, "late")


def test_an_endpoint_that_scales_is_updated(server: AwsServer) -> None:
    scaling = client(server, "application-autoscaling")
    assert deploy("scaled", *MODEL, "--autoscale", "invocations", "--autoscale-target", "9").exit_code == 0
    [target] = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    named = {name: target[name] for name in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
    tracking = {"TargetValue": 1.0, "PredefinedMetricSpecification": {"PredefinedMetricType": "X"}}
    former = {"PolicyType": "TargetTrackingScaling", "TargetTrackingScalingPolicyConfiguration": tracking}
    for name in ("scaled-invocations", "theirs"):
        scaling.put_scaling_policy(PolicyName=name, **named, **former)
    # Another metric, and OpenTelemetry's variables that only the image needs to understand.
    queue = ("--autoscale", "queue", "--autoscale-target", "2", "--env", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
    tracing = ("--env", "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317")
    result = deploy("scaled", *MODEL, *queue, *tracing, "--update")
    assert result.exit_code == 0, result.output
    policies = scaling.describe_scaling_policies(**named)["ScalingPolicies"]
    assert sorted(item["PolicyName"] for item in policies) == ["scaled-autoscaling", "theirs"]
    count = [{"VariantName": "AllTraffic", "DesiredInstanceCount": 3}]
    sagemaker = client(server, "sagemaker")
    sagemaker.update_endpoint_weights_and_capacities(EndpointName="scaled", DesiredWeightsAndCapacities=count)
    assert "UpdateEndpoint" in deploy("scaled", *MODEL, "--update", "--wait").stdout
    [variant] = sagemaker.describe_endpoint(EndpointName="scaled")["ProductionVariants"]
    assert variant["CurrentInstanceCount"] == 3
    assert lmi("undeploy", "--name", "scaled").exit_code == 0
    assert nothing(server, "scaled")


def test_an_endpoint_is_kept_while_aws_does_not_answer(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.control(lose=["CreateEndpoint", "DescribeEndpoint", "DescribeEndpoint"])
    result = deploy("lost", *MODEL, "--wait")
    assert result.exit_code == 0, result.output
    assert says(result.stdout, "CreateEndpoint ServiceUnavailable lost")
    other = ("--model-data", "s3://bucket/other/", "--update", "--wait")
    server.control(lose=["UpdateEndpoint", "DescribeEndpoint"])
    monkeypatch.setattr("lmi_handlers.tools.deploy.run._PATIENCE_SECONDS", 0)
    result = deploy("lost", *other)
    assert result.exit_code == 1
    assert says(result.stderr, "DescribeEndpoint ServiceUnavailable lost became")
    assert "Delete" not in result.stdout
    both = exists(server, "lost")
    assert (len(both["models"]), len(both["configurations"])) == (2, 2)
    server.control()
    assert lmi("undeploy", "--name", "lost").exit_code == 0
    assert nothing(server, "lost")


@pytest.mark.long
def test_an_update_that_fails_leaves_what_was_there(server: AwsServer) -> None:
    scaled = ("--autoscale", "concurrency", "--autoscale-target")
    deploy("steady", *MODEL, *scaled, "5")
    before = exists(server, "steady")
    assert before["targets"]
    server.control(refuse=["PutScalingPolicy"])
    assert "PutScalingPolicy" in deploy("steady", *MODEL, *scaled, "6", "--update").stderr
    assert exists(server, "steady") == before
    server.control(rolls_back=True)
    result = deploy("steady", "--model-data", "s3://bucket/other/", "--update", "--wait")
    assert says(result.stderr, "SageMaker rolled back alarm went")
    assert exists(server, "steady") == before
    server.control(refuse=["PutScalingPolicy"])
    result = deploy("steady", "--model-data", "s3://bucket/third/", *scaled, "6", "--update")
    assert says(result.stderr, "PutScalingPolicy kept steady-")
    both = exists(server, "steady")
    assert (len(both["models"]), len(both["configurations"])) == (2, 2)  # the endpoint uses the new ones
    assert lmi("undeploy", "--name", "steady").exit_code == 0
    assert nothing(server, "steady")


@pytest.mark.long
def test_ctrl_c_while_waiting_deletes_nothing(server: AwsServer) -> None:
    server.control(status="Creating")
    command = [sys.executable, "-m", "lmi_handlers.commands.interruptible", "lmi_handlers.commands.cli"]
    command += ["deploy", "--name", "slow"]
    process = subprocess.Popen(
        [*command, *PLACE, *MODEL, "--wait"],
        env=ENVIRON | server.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    while (line := process.stdout.readline()) and "Creating" not in line:
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert (process.returncode, says(errors, "interrupted still")) == (1, True)
    assert lmi("status", "--name", "slow").exit_code == 3
    assert lmi("undeploy", "--name", "slow").exit_code == 0


def test_a_model_that_a_shadow_variant_uses_is_kept(server: AwsServer) -> None:
    assert deploy("shadowed", *MODEL, "--component", "c").exit_code == 0
    [model] = exists(server, "shadowed")["models"]
    variant = {"VariantName": "s", "InstanceType": "ml.m5.xlarge", "InitialInstanceCount": 1}
    client(server, "sagemaker").create_endpoint_config(
        EndpointConfigName="by-hand",
        ProductionVariants=[{**variant, "VariantName": "p"}],
        ShadowProductionVariants=[{**variant, "ModelName": model}],
    )
    client(server, "sagemaker").update_endpoint(EndpointName="shadowed", EndpointConfigName="by-hand")
    assert lmi("undeploy", "--name", "shadowed", "--component", "c").exit_code == 0
    assert exists(server, "shadowed")["models"] == [model]
    assert lmi("undeploy", "--name", "shadowed").exit_code == 0
    assert nothing(server, "shadowed")


def test_what_others_made_is_never_deleted(server: AwsServer) -> None:
    sagemaker = client(server, "sagemaker")
    variant = {
        "VariantName": "a",
        "InstanceType": "ml.m5.xlarge",
        "InitialInstanceCount": 1,
        "ModelName": "theirs-00000000",
    }
    sagemaker.create_model(ModelName="theirs-00000000", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE})
    sagemaker.create_endpoint_config(EndpointConfigName="theirs", ProductionVariants=[variant])
    sagemaker.create_endpoint(EndpointName="theirs", EndpointConfigName="theirs")
    before = exists(server, "theirs")
    for result in (lmi("undeploy", "--name", "theirs"), deploy("theirs", *MODEL, "--update")):
        assert result.exit_code == 1
        assert says(result.stderr, "endpoint theirs deploy")
    assert exists(server, "theirs") == before
    sagemaker.delete_endpoint(EndpointName="theirs")
    assert lmi("undeploy", "--name", "theirs").stdout == "nothing is left of theirs\n"
    assert exists(server, "theirs")["models"] == ["theirs-00000000"]


def test_check_role_says_what_is_not_allowed(server: AwsServer) -> None:
    scaled = ("--autoscale", "concurrency", "--autoscale-target", "5")
    allowed = deploy("checked", *MODEL, *scaled, "--check-role", "--dry-run")
    assert allowed.exit_code == 0, allowed.output
    assert says(allowed.stderr, "role all permissions")
    server.control(refuse=["s3:GetObject", "sagemaker:CreateEndpoint"])
    result = deploy("checked", *MODEL, "--check-role")
    assert result.exit_code == 1
    assert f"{ROLE} may not s3:GetObject" in result.stderr
    assert "may not sagemaker:CreateEndpoint" in result.stderr
    assert nothing(server, "checked")


def test_logs(server: AwsServer) -> None:
    logs, group = client(server, "logs"), "/aws/sagemaker/Endpoints/logged"
    assert says(lmi("logs", "--name", "logged").stderr, "no group /aws/sagemaker/Endpoints/logged")
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="AllTraffic/i-1")

    def write(*messages: str, seconds_ago: int = 0) -> None:
        now = int(time.time() * 1000) - 1000 * seconds_ago
        events = [{"timestamp": now + number, "message": message} for number, message in enumerate(messages)]
        logs.put_log_events(logGroupName=group, logStreamName="AllTraffic/i-1", logEvents=events)

    write("too old", seconds_ago=7200)
    write("loading\n", "engine ready", seconds_ago=60)
    assert lmi("logs", "--name", "logged").stdout == "loading\nengine ready\n"
    shown = lmi("logs", "--name", "logged", "--since", "3h", "--streams").stdout
    assert shown == "AllTraffic/i-1  too old\nAllTraffic/i-1  loading\nAllTraffic/i-1  engine ready\n"
    assert says(lmi("logs", "--name", "logged", "--since", "1y").stderr, "--since number s m h d")
    command = [sys.executable, "-m", "lmi_handlers.commands.interruptible", "lmi_handlers.commands.cli"]
    command += ["logs", "--name", "logged", "-f"]
    with subprocess.Popen(command, env=ENVIRON | server.environ, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["loading\n", "engine ready\n"]
        write("a request")
        assert process.stdout.readline() == "a request\n"
        process.send_signal(signal.SIGINT)


def test_aws_that_cannot_be_reached(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    result = lmi("status", "--name", "x")
    assert result.exit_code == 1
    assert says(result.stderr, "DescribeEndpoint URL http://127.0.0.1:1/")
    monkeypatch.delenv("AWS_REGION")
    assert "You must specify a region." in lmi("status", "--name", "x").stderr
