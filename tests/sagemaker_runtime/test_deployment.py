"""sagemaker/deploy.py makes valid calls, and the image starts as SageMaker starts it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator
from paths import ROOT


def deploy(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(ROOT / "sagemaker/deploy.py"), *arguments]
    run = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=60)
    return run.stdout if run.returncode == 0 else f"{run.returncode}: {run.stderr}"


REQUIRED = (
    "--name",
    "my-model",
    "--image",
    "1.dkr.ecr.us-east-1.amazonaws.com/lmi:1",
    "--role",
    "arn:aws:iam::1:role/sagemaker",
)


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (
            ("--model-data", "s3://bucket/prefix", "--env", "OPTION_DTYPE=bf16", "--inference-ami-version", "x-1"),
            {"S3Uri": "s3://bucket/prefix/", "S3DataType": "S3Prefix", "CompressionType": "None"},
        ),
        (
            ("--model-data", "s3://bucket/model.tar.gz", "--volume-size", "100", "--network-isolation"),
            {"S3Uri": "s3://bucket/model.tar.gz", "S3DataType": "S3Object", "CompressionType": "Gzip"},
        ),
        (("--env", "HF_MODEL_ID=org/name", "--env", "OPTION_X=a=b"), None),
    ],
)
def test_deploy_makes_valid_sagemaker_calls(arguments: tuple[str, ...], source: dict[str, str] | None) -> None:
    calls = json.loads(deploy(*REQUIRED, *arguments, "--dry-run"))
    assert [call["operation"] for call in calls] == ["create_model", "create_endpoint_config", "create_endpoint"]
    service = get_session().get_service_model("sagemaker")
    for call in calls:
        operation = service.operation_model("".join(word.title() for word in call["operation"].split("_")))
        assert operation.input_shape is not None
        report = ParamValidator().validate(call["parameters"], operation.input_shape)
        assert not report.has_errors(), report.generate_report()
    container = calls[0]["parameters"]["PrimaryContainer"]
    assert container.get("ModelDataSource") == (None if source is None else {"S3DataSource": source})
    if source is None:
        assert container["Environment"] == {"HF_MODEL_ID": "org/name", "OPTION_X": "a=b"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "must name the model"), (("--env", "NAME"), "'NAME' is not of the form NAME=VALUE")],
)
def test_deploy_rejects_invalid_combinations(arguments: tuple[str, ...], message: str) -> None:
    output = deploy(*REQUIRED, *arguments, "--dry-run")
    assert output.startswith("2: ")
    assert message in output


def test_image_starts_like_on_sagemaker() -> None:
    """The entry point has the exec form and our command. Without the label, SageMaker does not set a port."""
    dockerfile = (ROOT / "sagemaker/Dockerfile").read_text()
    instructions = {
        match[1]: match[2] for match in re.finditer(r"^(ENTRYPOINT|CMD|LABEL|EXPOSE) (.*)$", dockerfile, re.M)
    }
    [command] = json.loads(instructions["ENTRYPOINT"])
    assert command in {script.name for script in distribution("lmi-handlers").entry_points}
    assert json.loads(instructions["CMD"]) == ["serve"]
    assert instructions["LABEL"] == "com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true"
    assert instructions["EXPOSE"] == "8080"


def test_sagemaker_folder_does_not_hide_the_sagemaker_sdk() -> None:
    names = {path.name for path in (ROOT / "sagemaker").iterdir()}
    assert not names & {"__init__.py", "serve.py", "train.py", "core.py"}
