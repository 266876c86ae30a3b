"""`InvokeEndpointAsync`: inputs and answers in S3 or in files, failures, and notifications."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
import requests
from botocore.exceptions import ClientError
from facts import says
from runtime_client import runtime_client
from s3_server import S3Server
from serving import Server, StartServer, free_port
from waiting import wait_until

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.laptop.sagemaker_runtime import notifications
from lmi_handlers.laptop.sagemaker_runtime.notifications import Topic
from lmi_handlers.laptop.sagemaker_runtime.storage import parse_folder, parse_input

if TYPE_CHECKING:
    from mypy_boto3_sagemaker_runtime import SageMakerRuntimeClient

BUCKET = "runtime"
PROPERTIES = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\nmax_request_size=300000\n"
    "option.max_rolling_batch_size=1\n"
)


class Subscriber(http.server.ThreadingHTTPServer):
    """Receives notifications: topic -> messages. The first request of a server fails."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.received: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.refusals = 1
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def message(self, inference_id: str) -> tuple[str, dict[str, Any]]:
        """Wait for the message about an invocation. Returns it with its topic."""

        def found() -> list[tuple[str, dict[str, Any]]]:
            messages = [(headers["x-amz-sns-topic-arn"], json.loads(sns["Message"])) for headers, sns in self.received]
            return [(topic, message) for topic, message in messages if message["inferenceId"] == inference_id]

        wait_until(lambda: bool(found()))
        [only] = found()
        return only


class _Receiver(http.server.BaseHTTPRequestHandler):
    server: Subscriber

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refused = self.server.refusals > 0
        if refused:
            self.server.refusals -= 1
        else:
            self.server.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(500 if refused else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    server.put(BUCKET, {"in/hello.json": b'{"inputs": "from S3"}', "in/large.json": b"x" * 300_001})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def subscriber() -> Iterator[Subscriber]:
    server = Subscriber()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server(s3: S3Server, subscriber: Subscriber, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = f"http://127.0.0.1:{subscriber.server_port}/"
    options = ["--async-output", f"s3://{BUCKET}/out/", "--async-failure", f"s3://{BUCKET}/failed"]
    options += ["--async-concurrency", "2", "--async-success-url", url, "--async-error-url", url]
    directory = tmp_path_factory.mktemp("async") / "m"
    server = Server(directory, PROPERTIES, "--local-runtime", *options, environ=s3.environ)
    yield server.wait_ready()
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[SageMakerRuntimeClient]:
    with closing(runtime_client(server.url)) as boto:
        yield boto


def body(prompt: str) -> bytes:
    return json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": 64}}).encode()


def content(s3: S3Server, url: str) -> bytes:
    """The object's content, once there is one."""
    bucket, key = urlsplit(url).netloc, urlsplit(url).path.lstrip("/")

    def exists() -> bool:
        return bool(s3.client.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents"))

    wait_until(exists)
    return s3.client.get_object(Bucket=bucket, Key=key)["Body"].read()


def test_inline_body(client: SageMakerRuntimeClient, s3: S3Server, subscriber: Subscriber) -> None:
    answer = client.invoke_endpoint_async(
        EndpointName="mine", Body=body("hällo"), ContentType="application/json", Accept="application/json"
    )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 202
    identifier = answer["InferenceId"]
    assert str(uuid.UUID(identifier)) == identifier
    assert answer["OutputLocation"].startswith(f"s3://{BUCKET}/out/")
    assert answer["OutputLocation"].endswith(".out")
    assert answer["FailureLocation"].startswith(f"s3://{BUCKET}/failed/")
    assert json.loads(content(s3, answer["OutputLocation"])) == {"generated_text": "hällo"}
    topic, message = subscriber.message(identifier)  # the subscriber refuses the first try
    assert topic.endswith(":async-success")
    assert message["receivedTime"] <= message["eventTime"]
    assert {name: value for name, value in message.items() if not name.endswith("Time")} == {
        "awsRegion": "us-east-1",
        "invocationStatus": "Completed",
        "requestParameters": {
            "accept": "application/json",
            "contentType": "application/json",
            "endpointName": "mine",
        },
        "responseParameters": {"contentType": "application/json", "outputLocation": answer["OutputLocation"]},
        "inferenceId": identifier,
        "eventVersion": "1.0",
        "eventSource": "aws:sagemaker",
        "eventName": "InferenceResult",
    }


def test_notifications_have_the_shape_of_snss(subscriber: Subscriber, client: SageMakerRuntimeClient) -> None:
    client.invoke_endpoint_async(EndpointName="x", Body=body("shape"), InferenceId="shape")
    subscriber.message("shape")
    [(headers, sns)] = [item for item in subscriber.received if '"inferenceId": "shape"' in item[1]["Message"]]
    assert headers["x-amz-sns-message-type"] == sns["Type"] == "Notification"
    assert headers["x-amz-sns-message-id"] == sns["MessageId"]
    assert headers["x-amz-sns-topic-arn"] == sns["TopicArn"] == "arn:aws:sns:us-east-1:000000000000:async-success"


def test_input_in_s3_with_names_of_the_clients(client: SageMakerRuntimeClient, s3: S3Server, server: Server) -> None:
    answer = client.invoke_endpoint_async(
        EndpointName="x",
        InputLocation=f"https://{BUCKET}.s3.us-east-1.amazonaws.com/in/hello.json",
        ContentType="application/json",
        InferenceId="my-id",
        S3OutputPathExtension="a/b",
        Filename="c.json",
    )
    assert answer["InferenceId"] == "my-id"
    assert answer["OutputLocation"] == f"s3://{BUCKET}/out/a/b/c.json"
    assert answer["FailureLocation"].startswith(f"s3://{BUCKET}/failed/")
    assert "a/b" not in answer["FailureLocation"]
    assert json.loads(content(s3, answer["OutputLocation"])) == {"generated_text": "from S3"}
    assert server.log_entry("my-id")["status"] == 200


@pytest.mark.parametrize(
    ("prompt", "seconds", "reason"),
    [
        ("hello RAISE@2", 60, "ClientError: Received client error (424) from model with message"),
        (
            "hello HANG@2",
            1,
            'ClientError: Received server error (0) from model with message "Your invocation timed out',
        ),
    ],
    ids=["error", "timeout"],
)
def test_failures_of_the_container(
    client: SageMakerRuntimeClient, s3: S3Server, subscriber: Subscriber, prompt: str, seconds: int, reason: str
) -> None:
    """The only place in the batch is free afterwards."""
    answer = client.invoke_endpoint_async(EndpointName="x", Body=body(prompt), InvocationTimeoutSeconds=seconds)
    failure = content(s3, answer["FailureLocation"]).decode()
    assert failure.startswith(reason)
    topic, message = subscriber.message(answer["InferenceId"])
    assert topic.endswith(":async-error")
    assert (message["invocationStatus"], message["failureReason"]) == ("Failed", failure)
    assert "responseParameters" not in message
    after = client.invoke_endpoint(EndpointName="x", Body=body("after"))
    assert json.loads(after["Body"].read()) == {"generated_text": "after"}


@pytest.mark.parametrize(
    ("key", "fault", "reason"),
    [
        ("in/none.json", None, "not exist"),
        ("in/large.json", None, "300001 bytes 300000 (max_request_size)"),
        ("in/hello.json", "truncate", "read"),
        ("in/hello.json", "denied", "access is denied"),
    ],
    ids=["missing", "large", "truncated", "denied"],
)
def test_inputs_that_cannot_be_read(
    client: SageMakerRuntimeClient, s3: S3Server, key: str, fault: Any, reason: str
) -> None:
    with s3.proxy.breaking(fault or "slow", part=key):
        answer = client.invoke_endpoint_async(EndpointName="x", InputLocation=f"s3://{BUCKET}/{key}")
        failure = content(s3, answer["FailureLocation"]).decode()
    assert failure.startswith(f"ClientError: s3://{BUCKET}/{key}")
    assert says(failure, reason)


def test_s3_that_refuses_the_answer(
    client: SageMakerRuntimeClient, s3: S3Server, subscriber: Subscriber, server: Server
) -> None:
    with s3.proxy.breaking("denied", method="PUT"):
        answer = client.invoke_endpoint_async(EndpointName="x", Body=body("lost"))
        _, message = subscriber.message(answer["InferenceId"])
    assert "out/" in message["failureReason"]
    assert says(message["failureReason"], "access denied")
    assert says(server.log, f"failure {answer['InferenceId']} lost")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Provide exactly one of them"),
        ({"Body": b"{}", "InputLocation": f"s3://{BUCKET}/a"}, "Provide exactly one of them"),
        ({"InputLocation": "https://169.254.169.254/latest"}, "is not the URL of an object in S3"),
        ({"InputLocation": "s3://bucket/"}, "is not the URL of an object in S3"),
        ({"InputLocation": "file:///etc/passwd"}, "at 'inputLocation' failed to satisfy constraint"),
        ({"Body": b"{}", "S3OutputPathExtension": "a/../../b"}, "has an empty name, '.' or '..' in it"),
        ({"Body": b"{}", "Filename": "a.b.c"}, "'a.b.c' at 'filename'"),
        ({"Body": b"{}", "Filename": "../a"}, "'../a' at 'filename'"),
        ({"Body": b"{}", "InvocationTimeoutSeconds": 3601}, "Member must have value less than or equal to 3600"),
        ({"Body": bytes(128_001)}, "HTTP content length exceeded 128000 bytes"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_requests_that_are_refused(client: SageMakerRuntimeClient, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError, match=message):
        client.invoke_endpoint_async(EndpointName="x", **options)


def test_the_log_has_no_secrets_of_a_subscribers_url(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifications, "_PAUSE", 0.0)
    Topic("async-error", f"http://127.0.0.1:{free_port()}/hook?token=secret").publish({})
    wait_until(lambda: len(caplog.records) == 3)
    assert "notifying http://127.0.0.1:" in caplog.text
    assert "secret" not in caplog.text


def test_answers_in_files(start_server: StartServer, tmp_path: Path) -> None:
    """Two at a time; the rest waits, and is not forgotten. No deadline cuts them, nor does a subscriber hold them up."""
    properties = PROPERTIES + "option.echo_tokens_per_second=100\noption.response_deadline=0.05\n"
    output = tmp_path / "an swers"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        options = ("--local-runtime", "--async-output", output.as_uri(), "--async-success-url", url)
        server = start_server(properties, *options)
        client = runtime_client(server.url)
        started = time.monotonic()
        answers = [client.invoke_endpoint_async(EndpointName="x", Body=body(f"number {n}")) for n in range(8)]
        assert time.monotonic() - started < 30
        paths = [Path(url2pathname(urlsplit(answer["OutputLocation"]).path)) for answer in answers]
        assert {path.parent for path in paths} == {output}
        wait_until(lambda: all(path.exists() for path in paths))
        client.close()
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o644}
    assert set(output.iterdir()) == set(paths)
    assert [json.loads(path.read_bytes())["generated_text"] for path in paths] == [f"number {n}" for n in range(8)]


def test_an_invocation_counts_for_the_key_of_its_client(start_server: StartServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("team-a key-of-team-a\n")
    options = ("--local-runtime", "--async-output", (tmp_path / "out").as_uri(), "--api-key-file", str(keys))
    server = start_server("option.rolling_batch=echo\n", *options)
    answer = requests.post(
        f"{server.url}/endpoints/x/async-invocations",
        body("abc"),
        headers={"x-api-key": "key-of-team-a", "X-Amzn-SageMaker-Inference-Id": "mine"},
        timeout=60,
    )
    assert answer.status_code == 202
    assert server.log_entry("mine")["key_label"] == "team-a"
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    assert 'lmi_key_requests_total{key_label="team-a"} 1\n' in page


def test_without_async_output_the_operation_is_refused(echo_server: Server) -> None:
    with (
        closing(runtime_client(echo_server.url)) as client,
        pytest.raises(ClientError, match="--async-output") as caught,
    ):
        client.invoke_endpoint_async(EndpointName="x", Body=b"{}")
    assert caught.value.response["Error"]["Code"] == "ValidationError"


@pytest.mark.parametrize("text", ["/tmp/x", "file://x", "https://bucket/x", "s3://UPPER/x", ""])
def test_output_must_be_in_s3_or_a_local_folder(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_folder("--async-output", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a b/c", "s3://bucket/a b/c"),
        ("https://bucket.s3.amazonaws.com/a%20b", "s3://bucket/a b"),
        ("https://my.bucket.s3.eu-west-1.amazonaws.com/k", "s3://my.bucket/k"),
        ("https://s3.eu-west-1.amazonaws.com/bucket/k/l", "s3://bucket/k/l"),
        ("https://s3-eu-west-1.amazonaws.com/bucket/k", "s3://bucket/k"),
        ("https://bucket.s3.amazonaws.com.evil.org/k", None),
        ("https://evil.org/bucket.s3.amazonaws.com/k", None),
        ("https://user@bucket.s3.amazonaws.com/k", None),
        ("https://s3.amazonaws.com/bucket", None),
    ],
)
def test_input_locations(text: str, expected: str | None) -> None:
    url = parse_input(text)
    assert (None if url is None else str(url)) == expected
