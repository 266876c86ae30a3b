"""SageMaker's runtime API on a laptop, as boto3 sees it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
import requests
from botocore.exceptions import ClientError, EventStreamError
from flask import Flask, Response, request
from paths import ROOT
from runtime_client import runtime_client
from serving import ENVIRON, Server, free_port

from lmi_handlers.config.local_runtime import LocalRuntimeSettings
from lmi_handlers.laptop.sagemaker_runtime.routes import local_runtime

if TYPE_CHECKING:
    from mypy_boto3_sagemaker_runtime import SageMakerRuntimeClient

PAYLOADS = sorted((ROOT / "sagemaker/payloads").glob("*.json"))
PREFIX = "X-Amzn-SageMaker-"


@pytest.fixture
def client(echo_server: Server) -> Iterator[SageMakerRuntimeClient]:
    with closing(runtime_client(echo_server.url)) as boto:
        yield boto


def invocations(server: Server, payload: bytes, *, stream: bool = False) -> requests.Response:
    """The answer of the container itself."""
    data = json.dumps(json.loads(payload) | {"stream": stream})
    return requests.post(f"{server.url}/invocations", data, headers={"Connection": "close"}, timeout=60)


def body(prompt: str, **parameters: object) -> bytes:
    return json.dumps({"inputs": prompt, "parameters": parameters}).encode()


def payload_parts(response: Any) -> list[bytes]:
    with closing(response["Body"]) as events:
        return [event["PayloadPart"]["Bytes"] for event in events]


def payload_parts_until_error(response: Any, message: str) -> list[bytes]:
    parts: list[bytes] = []
    with closing(response["Body"]) as events, pytest.raises(EventStreamError, match=message):
        parts.extend(event["PayloadPart"]["Bytes"] for event in events)
    return parts


def headers_of(response: Any) -> dict[str, str]:
    headers: dict[str, str] = response["ResponseMetadata"]["HTTPHeaders"]
    return headers


class TestInvokeEndpoint:
    def test_answer_is_the_same_as_the_containers(self, client: SageMakerRuntimeClient, echo_server: Server) -> None:
        payload = body("hello world", max_new_tokens=64, details=True)
        response = client.invoke_endpoint(EndpointName="any-name", ContentType="application/json", Body=payload)
        direct = invocations(echo_server, payload)
        assert response["Body"].read() == direct.content
        assert response["ContentType"] == direct.headers["Content-Type"] == "application/json"
        assert response["InvokedProductionVariant"] == "AllTraffic"
        assert re.fullmatch(r"[0-9a-f-]{36}", response["ResponseMetadata"]["RequestId"])

    def test_inference_id_is_passed_to_the_container_and_returned(
        self, client: SageMakerRuntimeClient, echo_server: Server
    ) -> None:
        response = client.invoke_endpoint(EndpointName="x", Body=body("hello"), InferenceId="my id-1")
        response["Body"].read()
        assert headers_of(response)["x-amzn-sagemaker-inference-id"] == "my id-1"
        assert echo_server.log_entry('"my id-1"')["request_id"] == "my id-1"

    @pytest.mark.parametrize("streaming", [False, True])
    def test_requested_variant_is_returned(self, client: SageMakerRuntimeClient, *, streaming: bool) -> None:
        options: dict[str, Any] = {"EndpointName": "x", "Body": body("hello"), "TargetVariant": "canary-2"}
        if streaming:
            streamed = client.invoke_endpoint_with_response_stream(**options)
            assert streamed["InvokedProductionVariant"] == "canary-2"
            assert b"".join(payload_parts(streamed))
        else:
            assert client.invoke_endpoint(**options)["InvokedProductionVariant"] == "canary-2"

    def test_error_of_the_container_is_a_model_error(self, client: SageMakerRuntimeClient) -> None:
        with pytest.raises(client.exceptions.ModelError) as caught:
            client.invoke_endpoint(EndpointName="my-endpoint", Body=body("hello", top_p=7))
        error = cast("dict[str, Any]", caught.value.response)
        original = '{"error":"parameters.top_p: must be from 0 to 1, got 7.0","code":424}'
        assert error["OriginalMessage"] == original
        assert error["OriginalStatusCode"] == json.loads(original)["code"]
        assert error["LogStreamArn"] == (
            "arn:aws:logs:us-east-1:000000000000:log-group:/aws/sagemaker/Endpoints/my-endpoint"
        )
        assert error["Error"]["Message"].startswith(
            f'Received client error (424) from primary with message "{original}". See https://'
        )
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert error["ResponseMetadata"]["RetryAttempts"] == 0

    @pytest.mark.parametrize(
        ("options", "member"),
        [
            ({"InferenceId": "x" * 65}, "inferenceId"),
            ({"CustomAttributes": "x" * 1025}, "customAttributes"),
            ({"SessionId": "a_b"}, "sessionId"),
            ({"TargetVariant": "-"}, "targetVariant"),
        ],
    )
    def test_requests_that_aws_rejects_are_rejected(
        self, client: SageMakerRuntimeClient, options: dict[str, Any], member: str
    ) -> None:
        with pytest.raises(ClientError, match=rf"Value.* at '{member}' failed to satisfy constraint") as caught:
            client.invoke_endpoint(EndpointName="x", Body=body("hello"), **options)
        assert caught.value.response["Error"]["Code"] == "ValidationError"
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400

    def test_errors_do_not_repeat_sensitive_values(self, client: SageMakerRuntimeClient) -> None:
        with pytest.raises(ClientError) as caught:
            client.invoke_endpoint(EndpointName="x", Body=body("hello"), CustomAttributes="secret" * 200)
        assert "secret" not in str(caught.value)


class TestInvokeEndpointWithResponseStream:
    def test_payload_parts_are_the_containers_bytes(self, client: SageMakerRuntimeClient, echo_server: Server) -> None:
        payload = body("hello 🦙 world", max_new_tokens=64)
        response = client.invoke_endpoint_with_response_stream(EndpointName="any", Body=payload)
        direct = invocations(echo_server, payload, stream=True)
        assert b"".join(payload_parts(response)) == direct.content
        assert response["ContentType"] == direct.headers["Content-Type"] == "application/jsonlines"
        assert response["InvokedProductionVariant"] == "AllTraffic"
        assert headers_of(response)["content-type"] == "application/vnd.amazon.eventstream"

    def test_accept_header_is_passed_to_the_container(self, client: SageMakerRuntimeClient) -> None:
        response = client.invoke_endpoint_with_response_stream(
            EndpointName="x", Body=body("hello"), Accept="text/event-stream"
        )
        assert response["ContentType"] == "text/event-stream"
        assert payload_parts(response)[0].startswith(b"data: ")

    def test_failure_during_a_stream_is_its_last_record(self, client: SageMakerRuntimeClient) -> None:
        response = client.invoke_endpoint_with_response_stream(EndpointName="x", Body=body("hello RAISE@3"))
        records = [json.loads(line) for line in b"".join(payload_parts(response)).splitlines()]
        assert [record["token"]["text"] for record in records] == ["h", "e", ""]
        assert records[-1]["details"]["finish_reason"] == "error"

    def test_failure_before_the_first_byte_is_a_model_error(self, client: SageMakerRuntimeClient) -> None:
        with pytest.raises(client.exceptions.ModelError, match="the echo backend failed at token 1"):
            client.invoke_endpoint_with_response_stream(EndpointName="x", Body=body("hello RAISE@1"))

    def test_stream_cannot_open_a_session(self, client: SageMakerRuntimeClient) -> None:
        opened = client.invoke_endpoint(EndpointName="x", Body=body("hello"), SessionId="NEW_SESSION")
        assert "; Expires=" in opened["NewSessionId"]
        with pytest.raises(ClientError, match="'NEW_SESSION' at 'sessionId'"):
            client.invoke_endpoint_with_response_stream(EndpointName="x", Body=body("hello"), SessionId="NEW_SESSION")


@pytest.fixture(scope="module")
def splitting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that splits payload parts anywhere, with one place."""
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.max_rolling_batch_size=1\n"
    arguments = ("--local-runtime", "--split-payload-parts")
    server = Server(tmp_path_factory.mktemp("splitting") / "m", properties, *arguments)
    yield server.wait_ready()
    server.stop()


def test_hostile_splitting_preserves_the_bytes(splitting_server: Server) -> None:
    server = splitting_server
    payload = body("hällo 🦙🦙 wörld", max_new_tokens=64)
    direct = invocations(server, payload, stream=True)
    with closing(runtime_client(server.url)) as client:
        stream = client.invoke_endpoint_with_response_stream(EndpointName="x", Body=payload)
        parts = payload_parts(stream)
    assert b"".join(parts) == direct.content
    assert any(len(part) == 1 for part in parts)
    assert sum(part.endswith(b"\n") for part in parts) < len(parts) // 2
    assert run_example("boto3_stream.py", "hällo 🦙 wörld", server).stdout == "hällo 🦙 wörld\n"


def test_closing_a_stream_frees_its_place(splitting_server: Server) -> None:
    server = splitting_server
    answered = threading.Event()

    def second() -> None:
        with closing(runtime_client(server.url)) as another:
            another.invoke_endpoint(EndpointName="x", Body=body("second"))["Body"].read()
        answered.set()

    with closing(runtime_client(server.url)) as client:
        stream = client.invoke_endpoint_with_response_stream(EndpointName="x", Body=body("first HANG@3"))
        received = b""
        for event in stream["Body"]:
            received += event["PayloadPart"]["Bytes"]
            if b'"text": "f"' in received:
                break
        thread = threading.Thread(target=second)
        thread.start()
        assert not answered.wait(0.5), "the first stream still occupies the only place"
        stream["Body"].close()
        assert answered.wait(60)
        thread.join()


SHORT_LIMITS = """
from lmi_handlers.app import create_app
from lmi_handlers.config.local_runtime import LocalRuntimeSettings
from lmi_handlers.laptop.sagemaker_runtime.routes import local_runtime

app = create_app()
app.register_blueprint(local_runtime(LocalRuntimeSettings(), invoke_time_limit=3, stream_time_limit=3))
"""


def test_container_that_hangs_is_cut_off(tmp_path: Path) -> None:
    """With the real server, even if the engine sends nothing any more. The three requests end at the same time."""
    (tmp_path / "short_limits.py").write_text(SHORT_LIMITS)
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-c", "python:lmi_handlers.gunicorn_conf", "--chdir", str(tmp_path)]
    environ = {"LMI_MODEL_DIR": str(tmp_path), "LMI_HOST": "127.0.0.1", "LMI_PORT": str(port)}
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.max_rolling_batch_size=3\n"
    server = Server(tmp_path, properties, command=[*command, "short_limits:app"], environ=environ, port=port)
    try:
        server.wait_ready()
        with closing(runtime_client(server.url)) as client, ThreadPoolExecutor(3) as pool:
            plain = pool.submit(client.invoke_endpoint, EndpointName="x", Body=body("hello HANG@3"))
            silent = pool.submit(
                client.invoke_endpoint_with_response_stream, EndpointName="x", Body=body("hello HANG@1")
            )
            stream = client.invoke_endpoint_with_response_stream(EndpointName="x", Body=body("hello HANG@3"))
            parts = payload_parts_until_error(stream, "ModelStreamError.*Your invocation timed out")
            with pytest.raises(client.exceptions.ModelError) as refused:
                plain.result()
            with pytest.raises(client.exceptions.ModelError, match=r"server error \(0\).*Your invocation timed out"):
                silent.result()
            server.wait_for_sequences(0)  # none of the three requests still occupies a place
            answer = client.invoke_endpoint(EndpointName="x", Body=body("hello"))
            assert json.loads(answer["Body"].read()) == {"generated_text": "hello"}
    finally:
        server.stop()
    error = cast("dict[str, Any]", refused.value.response)
    assert error["OriginalStatusCode"] == 0
    assert error["OriginalMessage"].startswith("Your invocation timed out while waiting for a response")
    assert [json.loads(line)["token"]["text"] for line in b"".join(parts).splitlines()] == ["h", "e"]


class ThreadingServer(ThreadingMixIn, WSGIServer):
    """Closes each response, also if its client resets the connection. Flask's own server does not."""


class QuietHandler(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the parameter's name in the base class
        pass


class RuntimeBefore:
    """The runtime API in front of a different container, which misbehaves."""

    def __init__(self, view: Callable[[], Response], stream_time_limit: float = 60.0) -> None:
        app = Flask(__name__)
        app.add_url_rule("/invocations", view_func=view, methods=["POST"])
        app.register_blueprint(local_runtime(LocalRuntimeSettings(), stream_time_limit=stream_time_limit))
        self._server = make_server("127.0.0.1", 0, app, ThreadingServer, QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.client = runtime_client(f"http://127.0.0.1:{self._server.server_port}")

    def __enter__(self) -> SageMakerRuntimeClient:
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TestOtherContainers:
    def test_headers_are_mapped_in_both_directions(self) -> None:
        seen: list[dict[str, str]] = []

        def misbehave() -> Response:
            seen.append({name.lower(): value for name, value in request.headers.items()})
            headers = {
                PREFIX + "Session-Id": "abc; Expires=2030-01-01T00:00:00Z",
                PREFIX + "Custom-Attributes": "out",
                "X-Other": "x",
            }
            return Response(request.get_data(), headers=headers, content_type="text/csv")

        with RuntimeBefore(misbehave) as client:
            plain = client.invoke_endpoint(
                EndpointName="x",
                Body=b"1,2",
                ContentType="text/csv",
                Accept="text/plain",
                CustomAttributes="in=1",
                TargetModel="a/b.tar.gz",
                SessionId="NEW_SESSION",
            )
            assert plain["Body"].read() == b"1,2"
            stream = client.invoke_endpoint_with_response_stream(
                EndpointName="x", Body=b"1,2", ContentType="text/csv", Accept="text/plain"
            )
            assert payload_parts(stream) == [b"1,2"]
        assert plain["ContentType"] == stream["ContentType"] == "text/csv"
        assert plain["CustomAttributes"] == stream["CustomAttributes"] == "out"
        assert plain["NewSessionId"] == "abc; Expires=2030-01-01T00:00:00Z"
        assert "x-other" not in headers_of(plain)
        assert [set(headers) - {"host", "content-length"} for headers in seen] == [
            {
                "content-type",
                "accept",
                "x-amzn-sagemaker-forwarded-api",
                "x-amzn-sagemaker-custom-attributes",
                "x-amzn-sagemaker-target-model",
                "x-amzn-sagemaker-session-id",
            },
            {"content-type", "accept", "x-amzn-sagemaker-forwarded-api"},
        ]
        assert [headers["accept"] for headers in seen] == ["text/plain", "text/plain"]
        apis = [headers["x-amzn-sagemaker-forwarded-api"] for headers in seen]
        assert apis == ["InvokeEndpoint", "InvokeEndpointWithResponseStream"]

    def test_broken_stream_is_a_model_stream_error(self) -> None:
        def misbehave() -> Response:
            def chunks() -> Iterator[bytes]:
                yield b"one\n"
                raise ConnectionError("gone")

            return Response(chunks())

        with RuntimeBefore(misbehave) as client:
            stream = client.invoke_endpoint_with_response_stream(EndpointName="x", Body=b"")
            parts = payload_parts_until_error(stream, r"\(ModelStreamError\).* closed before its response was complete")
            with pytest.raises(client.exceptions.ModelError, match="and could not load the entire response body"):
                client.invoke_endpoint(EndpointName="x", Body=b"")
        assert parts == [b"one\n"]

    def test_container_that_fails_before_its_first_byte(self) -> None:
        def misbehave() -> Response:
            def chunk() -> bytes:
                raise ConnectionError("gone")

            return Response(chunk() for _ in range(1))

        with RuntimeBefore(misbehave) as client:
            for operation in (client.invoke_endpoint, client.invoke_endpoint_with_response_stream):
                with pytest.raises(client.exceptions.ModelError, match="could not load the entire response body"):
                    operation(EndpointName="x", Body=b"")

    def test_slow_stream_is_cut_off(self) -> None:
        released = threading.Event()

        def misbehave() -> Response:
            def chunks() -> Iterator[bytes]:
                while not released.wait(0.02):
                    yield b"on and on\n"

            response = Response(chunks())
            response.call_on_close(released.set)
            return response

        with RuntimeBefore(misbehave, stream_time_limit=2) as client:
            stream = client.invoke_endpoint_with_response_stream(EndpointName="x", Body=b"")
            payload_parts_until_error(stream, "Your invocation timed out")
            assert released.wait(60), "the container's body was not closed"

    @pytest.mark.parametrize(("status", "side"), [(302, "server"), (404, "client"), (503, "server")])
    def test_long_errors_are_truncated(self, status: int, side: str) -> None:
        with RuntimeBefore(lambda: Response("ü" * 5000, status)) as client:
            for operation in (client.invoke_endpoint, client.invoke_endpoint_with_response_stream):
                with pytest.raises(client.exceptions.ModelError) as caught:
                    operation(EndpointName="x", Body=b"")
                error = cast("dict[str, Any]", caught.value.response)
                assert error["OriginalStatusCode"] == status
                assert error["OriginalMessage"] == "ü" * 2048
                message = error["Error"]["Message"]
                assert len(message) == 2048
                assert message.startswith(f'Received {side} error ({status}) from primary with message "üüü')
                assert message.endswith(" for more information.")

    def test_large_answers_are_split_into_parts(self) -> None:
        data = bytes(range(256)) * 4096
        with RuntimeBefore(lambda: Response(data)) as client:
            stream = client.invoke_endpoint_with_response_stream(EndpointName="x", Body=b"")
            parts = payload_parts(stream)
        assert b"".join(parts) == data
        assert len(parts) == 16


@pytest.mark.parametrize("example", ["boto3_invoke.py", "boto3_stream.py"])
def test_examples(example: str, echo_server: Server) -> None:
    prompt = "hällo 🦙 wörld"
    ended = run_example(example, prompt, echo_server)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{prompt}\n", "")


def test_example_reports_a_failed_stream(echo_server: Server) -> None:
    ended = run_example("boto3_stream.py", "hello RAISE@3", echo_server)
    assert (ended.returncode, ended.stdout) == (1, "he")
    assert "the echo backend failed at token 3" in ended.stderr


def run_example(example: str, prompt: str, server: Server) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "clients" / example), prompt]
    environ = ENVIRON | {"SERVER_URL": server.url}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environ, timeout=120, check=False)


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: path.stem)
def test_payloads(client: SageMakerRuntimeClient, path: Path) -> None:
    """Every example payload is answered, and none of its fields is ignored."""
    payload = path.read_bytes()
    if path.stem.startswith("stream"):
        stream = client.invoke_endpoint_with_response_stream(
            EndpointName="x", ContentType="application/json", Body=payload
        )
        answer = b"".join(payload_parts(stream))
    else:
        answer = client.invoke_endpoint(EndpointName="x", ContentType="application/json", Body=payload)["Body"].read()
    assert b'"generated_text"' in answer
    assert b'"error"' not in answer
