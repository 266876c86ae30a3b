"""An endpoint for tests of applications, and the faults that it can have, as boto3 sees them."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from facts import says
from waiting import wait_until

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.laptop.sagemaker_runtime.faults import MAX_FILE, NO_FAULT, Fault, FaultsFile
from lmi_handlers.testing import (
    ContainerError,
    Delay,
    Endpoint,
    InternalFailure,
    InternalStreamFailure,
    ModelNotReady,
    NoCapacity,
    ServiceUnavailable,
    StreamBroken,
    Throttling,
    TimeLimit,
    endpoint,
)
from lmi_handlers.testing.endpoint import inherited

BODY = json.dumps({"inputs": "zwölf Boxkämpfer", "parameters": {"max_new_tokens": 64}, "stream": False}).encode()
STREAM = json.dumps({"inputs": "zwölf Boxkämpfer", "parameters": {"max_new_tokens": 64}, "stream": True}).encode()


@pytest.fixture(scope="module")
def running() -> Iterator[Endpoint]:
    with endpoint() as started:
        yield started


@pytest.fixture
def sagemaker(running: Endpoint) -> Iterator[Endpoint]:
    yield running
    running.recover()


def ask(sagemaker: Endpoint, client: Any = None) -> Any:
    answer = (client or sagemaker.client).invoke_endpoint(EndpointName=sagemaker.name, Body=BODY)
    return json.loads(answer["Body"].read())["generated_text"]


def parts(sagemaker: Endpoint, received: list[bytes]) -> None:
    """Read a stream. Its parts are in `received`, also if it ends with an error."""
    answer = sagemaker.client.invoke_endpoint_with_response_stream(EndpointName=sagemaker.name, Body=STREAM)
    with closing(answer["Body"]) as events:
        received.extend(event["PayloadPart"]["Bytes"] for event in events)


@pytest.mark.parametrize("fault", [Throttling, ServiceUnavailable, InternalFailure])
def test_boto3_repeats_a_request(sagemaker: Endpoint, fault: Callable[..., Fault]) -> None:
    sagemaker.fail(fault(times=2))
    assert ask(sagemaker) == "zwölf Boxkämpfer"
    assert sagemaker.faults == []


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [
        (Throttling(), "ThrottlingException", 400),
        (ModelNotReady(), "ModelNotReadyException", 429),
        (NoCapacity(), "ValidationError", 400),
        (ServiceUnavailable(), "ServiceUnavailable", 503),
        (InternalFailure(), "InternalFailure", 500),
        (ContainerError(status=503), "ModelError", 424),
        (TimeLimit(), "ModelError", 424),
        (StreamBroken(after_bytes=5), "ModelError", 424),
    ],
)
def test_a_client_that_does_not_repeat(sagemaker: Endpoint, fault: Fault, code: str, status: int) -> None:
    client = sagemaker.new_client(Config(retries={"total_max_attempts": 1}))
    sagemaker.fail(fault)
    with pytest.raises(ClientError) as caught:
        ask(sagemaker, client)
    error: Any = caught.value.response
    assert (error["Error"]["Code"], error["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert ask(sagemaker, client) == "zwölf Boxkämpfer"
    client.close()


def test_the_containers_own_error(sagemaker: Endpoint) -> None:
    sagemaker.fail(ContainerError(status=507, message="no memory"))
    with pytest.raises(sagemaker.client.exceptions.ModelError) as caught:
        ask(sagemaker)
    error: Any = caught.value.response
    assert (error["OriginalStatusCode"], error["OriginalMessage"]) == (507, "no memory")


def test_a_stream_is_cut_inside_a_record(sagemaker: Endpoint) -> None:
    whole: list[bytes] = []
    parts(sagemaker, whole)
    for fault, code in (
        (StreamBroken(after_bytes=60), "ModelStreamError"),
        (TimeLimit(after_bytes=60), "ModelStreamError"),
        (InternalStreamFailure(after_bytes=60), "InternalStreamFailure"),
    ):
        sagemaker.fail(fault)
        received: list[bytes] = []
        with pytest.raises(EventStreamError) as caught:
            parts(sagemaker, received)
        assert caught.value.response["Error"]["Code"] == code
        assert b"".join(received) == b"".join(whole)[:60]
    assert not b"".join(whole)[:60].endswith(b"\n")
    assert any(not part.endswith(b"\n") for part in whole)  # a part is not a record


@pytest.mark.parametrize("fault", [StreamBroken(after_bytes=10**6), TimeLimit(after_bytes=10**6)])
def test_an_answer_that_is_shorter_is_cut_at_its_end(sagemaker: Endpoint, fault: Fault) -> None:
    sagemaker.fail(fault, fault)
    with pytest.raises(EventStreamError):
        parts(sagemaker, [])
    with pytest.raises(sagemaker.client.exceptions.ModelError):
        ask(sagemaker)


def test_a_stream_that_has_not_begun_at_the_time_limit(sagemaker: Endpoint) -> None:
    sagemaker.fail(TimeLimit())
    with pytest.raises(sagemaker.client.exceptions.ModelError) as caught:
        parts(sagemaker, [])
    error: Any = caught.value.response
    assert error["OriginalStatusCode"] == 0


def test_a_cold_start(sagemaker: Endpoint) -> None:
    sagemaker.fail(Delay(seconds=0.3))
    started = time.monotonic()
    assert ask(sagemaker) == "zwölf Boxkämpfer"
    assert time.monotonic() - started >= 0.3


def test_faults_of_one_operation_wait_for_it(sagemaker: Endpoint) -> None:
    sagemaker.fail(ContainerError(operation="InvokeEndpointWithResponseStream"), Throttling(times=2))
    assert ask(sagemaker) == "zwölf Boxkämpfer"
    assert sagemaker.faults == [ContainerError(operation="InvokeEndpointWithResponseStream")]
    with pytest.raises(sagemaker.client.exceptions.ModelError):
        parts(sagemaker, [])


@pytest.mark.parametrize(("fault", "facts"), [(None, "generated_text"), (ContainerError(message="full"), "500 full")])
def test_asynchronous_invocations(sagemaker: Endpoint, fault: Fault | None, facts: str) -> None:
    if fault is not None:
        sagemaker.fail(fault)
    answer = sagemaker.client.invoke_endpoint_async(EndpointName=sagemaker.name, Body=BODY)
    written = Path(urlsplit(answer["FailureLocation" if fault else "OutputLocation"]).path)
    wait_until(lambda: written.is_file() and written.read_text())
    assert says(written.read_text(), facts)


def test_any_client_of_boto3_calls_the_endpoint(sagemaker: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sagemaker.environ.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("sagemaker-runtime")
    assert ask(sagemaker, client) == "zwölf Boxkämpfer"
    client.close()
    with pytest.raises(ClientError):
        sagemaker.client.invoke_endpoint(EndpointName="another", Body=BODY)


def test_a_container_that_does_not_start_is_explained(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=nonsense\n")
    with pytest.raises(ConfigError) as caught, endpoint(tmp_path):
        pass
    assert says(str(caught.value), "nonsense echo openvino vllm")


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[",
        b'[{"fault": "nonsense"}]',
        b'[{"fault": "\xff"}]',
        b'[{"fault": "throttling", "times": 0}]',
        b'[{"fault": "throttling", "seconds": 1}]',
        b'[{"fault": "delay", "seconds": 1e9}]',
        b"[" * 30_000,
        b" " * (MAX_FILE + 1),
    ],
)
def test_unusable_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        FaultsFile(path).check()
    assert says(str(caught.value), str(path))
    with pytest.raises(ConfigError):
        FaultsFile(path).take("InvokeEndpoint")
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        FaultsFile(tmp_path / "nowhere" / "faults.json").add(Throttling())
    assert says(str(caught.value), "nowhere")


def test_a_file_that_another_program_keeps_locked(tmp_path: Path) -> None:
    file = FaultsFile(tmp_path / "faults.json", patience=0.05)
    file.add(Throttling())
    with (tmp_path / "faults.json").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(ConfigError) as caught:
            file.take("InvokeEndpoint")
    assert says(str(caught.value), "faults.json locked 0.05")
    assert isinstance(file.take("InvokeEndpoint"), Throttling)


def test_the_applications_variables_set_no_options() -> None:
    ours = {
        "OPTION_DTYPE": "fp32",
        "MODEL_ID": "org/name",
        "HF_MODEL_ID": "org/name",
        "SM_VLLM_MODEL": "m",
        "DTYPE": "int8",
    }
    assert inherited({"PATH": "/bin", "HF_TOKEN": "secret", **ours}) == {"PATH": "/bin", "HF_TOKEN": "secret"}


def test_each_fault_is_taken_as_often_as_it_says(tmp_path: Path) -> None:
    file = FaultsFile(tmp_path / "faults.json")
    with pytest.raises(ConfigError):
        file.check()
    file.add(Throttling(times=2, operation="InvokeEndpointAsync"), Delay(seconds=1))
    assert file.take("InvokeEndpoint") == Delay(seconds=1)
    assert file.take("InvokeEndpoint") == NO_FAULT
    assert [type(file.take("InvokeEndpointAsync")) for _ in range(3)] == [Throttling, Throttling, Fault]
    file.check()
    file.add(Throttling())
    file.clear()
    assert file.left() == []
