"""Who may use the local runtime and for what: signatures, bearer tokens, endpoint names, AWS's limits, OpenAI's path."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import boto3
import openai
import pytest
import requests
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.session import get_session
from runtime_client import close_connection
from serving import Server, lmi_check

from lmi_handlers.laptop.sagemaker_runtime import constraints

KEYS = {"AKIALOCAL": "a/secret+key", "AKIAOTHER": "other"}
TIME = "%Y%m%dT%H%M%SZ"
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
ECHOED = "user: hello\nassistant: "
BODY = b'{"inputs": "hello"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two access keys and a single endpoint, `prod`."""
    directory = tmp_path_factory.mktemp("signed")
    keys = directory / "keys"
    sections = [f"[{n}]\naws_access_key_id={key}\naws_secret_access_key={KEYS[key]}\n" for n, key in enumerate(KEYS)]
    keys.write_text("\n".join(sections))
    options = ["--local-runtime", "--local-runtime-keys", str(keys), "--endpoint-name", "prod"]
    options += ["--async-output", (directory / "answers").as_uri()]
    server = Server(directory / "m", "option.rolling_batch=echo\noption.echo_faults=true\n", *options)
    yield server.wait_ready()
    server.stop()


def boto_client(server: Server, key: str, secret: str, **config: Any) -> Any:
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=server.url,
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(**config),
    )
    client.meta.events.register("before-send.sagemaker-runtime", close_connection)
    return client


class ShiftedSigner(SigV4Auth):
    """Signs for another time than now."""

    shift = timedelta()

    def add_auth(self, request: AWSRequest) -> None:
        moment = (datetime.now(timezone.utc) + self.shift).strftime(TIME)
        request.context["timestamp"] = moment
        if "Date" not in request.headers:
            request.headers["X-Amz-Date"] = moment
        text = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(request, self.signature(text, request))  # type: ignore[attr-defined]  # not in the stubs


def signed(
    server: Server,
    *,
    service: str = "sagemaker",
    shift: timedelta = timedelta(),
    headers: dict[str, str] | None = None,
    path: str = "/endpoints/prod/invocations",
) -> dict[str, str]:
    """The headers of a signed request with `BODY`."""
    signer = ShiftedSigner(Credentials("AKIALOCAL", KEYS["AKIALOCAL"]), service, "eu-west-1")
    signer.shift = shift
    given = {"Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json", **(headers or {})}
    request = AWSRequest("POST", server.url + path, given, data=BODY)
    signer.add_auth(request)
    return dict(request.headers.items())


def post(server: Server, headers: dict[str, str], data: bytes = BODY, path: str = "/invocations") -> requests.Response:
    return requests.post(f"{server.url}/endpoints/prod{path}", data, headers=headers, timeout=60)


def refused(answer: requests.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.headers["x-amzn-ErrorType"], answer.json()["Message"]


class TestSignatures:
    def test_all_operations_with_either_key(self, server: Server) -> None:
        for key, secret in KEYS.items():
            with closing(boto_client(server, key, secret)) as client:
                asked = {"EndpointName": "prod", "Body": BODY, "CustomAttributes": "a=b;  c = d", "InferenceId": "i"}
                assert client.invoke_endpoint(**asked)["Body"].read() == b'{"generated_text": "hello"}'
                assert b"hello" in b"".join(
                    event["PayloadPart"]["Bytes"]
                    for event in client.invoke_endpoint_with_response_stream(**asked)["Body"]
                )
                assert client.invoke_endpoint_async(**asked)["InferenceId"] == "i"

    @pytest.mark.parametrize(("key", "secret"), [("AKIALOCAL", "wrong"), ("AKIALOCAL", KEYS["AKIAOTHER"])])
    def test_wrong_secret(self, server: Server, key: str, secret: str) -> None:
        with closing(boto_client(server, key, secret)) as client, pytest.raises(ClientError) as caught:
            client.invoke_endpoint(EndpointName="prod", Body=BODY)
        error = caught.value.response
        assert error["Error"]["Code"] == "InvalidSignatureException"
        assert error["Error"]["Message"].startswith("The request signature we calculated does not match the signature")
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 403

    def test_unknown_key(self, server: Server) -> None:
        with closing(boto_client(server, "AKIANONE", "x")) as client, pytest.raises(ClientError) as caught:
            client.invoke_endpoint(EndpointName="prod", Body=BODY)
        assert caught.value.response["Error"]["Code"] == "UnrecognizedClientException"

    def test_changes_after_signing_are_noticed(self, server: Server) -> None:
        headers = signed(server, headers={"X-Amzn-SageMaker-Custom-Attributes": "a=1"})
        assert post(server, headers).status_code == 200
        for changed in (
            post(server, headers, data=b'{"inputs": "other"}'),
            post(server, headers | {"X-Amzn-SageMaker-Custom-Attributes": "a=2"}),
            post(server, headers, path="/invocations-response-stream"),
            post(server, headers, path="/invocations?a=b"),
            post(server, headers | {"X-Amz-Date": datetime.now(timezone.utc).strftime("%Y%m%dT000000Z")}),
        ):
            assert refused(changed)[:2] == (403, "InvalidSignatureException")

    def test_date_may_be_in_the_header_of_http(self, server: Server) -> None:
        date = format_datetime(datetime.now(timezone.utc), usegmt=True)
        headers = signed(server, headers={"Date": date})
        assert "X-Amz-Date" not in headers
        assert post(server, headers).status_code == 200
        assert refused(post(server, headers | {"Date": "yesterday"}))[:2] == (403, "InvalidSignatureException")

    def test_other_clients_sign_more_headers_or_no_body(self, server: Server) -> None:
        more = signed(server, headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD", "X-Amz-Security-Token": "t"})
        assert post(server, more, data=b'{"inputs": "another"}').json() == {"generated_text": "another"}
        wrong = signed(server, headers={"X-Amz-Content-SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"})
        assert "does not match what was computed" in refused(post(server, wrong))[2]

    @pytest.mark.parametrize(
        ("minutes", "words"), [(-6, "Signature expired: "), (6, "Signature not yet current: ")], ids=["late", "early"]
    )
    def test_clocks_may_differ_by_five_minutes(self, server: Server, minutes: int, words: str) -> None:
        status, kind, message = refused(post(server, signed(server, shift=timedelta(minutes=minutes))))
        assert (status, kind) == (403, "InvalidSignatureException")
        assert message.startswith(words)
        assert message.endswith("5 min.)")
        near = timedelta(minutes=minutes // 6 * 4)
        assert post(server, signed(server, shift=near)).status_code == 200

    @pytest.mark.parametrize(
        ("authorization", "kind", "message"),
        [
            (None, "MissingAuthenticationTokenException", "Missing Authentication Token"),
            ("Bearer sagemaker-api-key-x", "MissingAuthenticationTokenException", "Missing Authentication Token"),
            ("AWS4-HMAC-SHA256 x", "IncompleteSignatureException", "requires 'Credential' parameter"),
            (
                "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=é",
                "IncompleteSignatureException",
                "5 slash",
            ),
            (
                "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=x, Signature=0",
                "InvalidSignatureException",
                "'Host' or ':authority' must be",
            ),
        ],
        ids=["missing", "bearer", "parameters", "scope", "host"],
    )
    def test_malformed(self, server: Server, authorization: str | None, kind: str, message: str) -> None:
        headers = {"X-Amz-Date": "20260101T000000Z"}
        if authorization is not None:
            headers["Authorization"] = authorization.encode().decode("latin-1")
        status, given, words = refused(post(server, headers))
        assert (status, given) == (403, kind)
        assert message in words

    def test_another_service(self, server: Server) -> None:
        answer = post(server, signed(server, service="s3"))
        assert refused(answer)[2] == "Credential should be scoped to correct service: 'sagemaker'."


def token(
    key: str = "AKIALOCAL",
    secret: str = KEYS["AKIALOCAL"],
    *,
    expires: int = 43200,
    action: str = "CallWithBearerToken",
) -> str:
    """A token as `sagemaker.core.token_generator` makes it."""
    request = AWSRequest(
        "POST", "https://sagemaker.amazonaws.com/", {"host": "sagemaker.amazonaws.com"}, params={"Action": action}
    )
    SigV4QueryAuth(Credentials(key, secret), "sagemaker", "us-east-1", expires=expires).add_auth(request)
    url = str(request.url).replace("https://", "") + "&Version=1"
    return "sagemaker-api-key-" + base64.b64encode(url.encode()).decode()


class TestOpenAIPath:
    def test_chat_and_stream(self, server: Server) -> None:
        """`model` may be the endpoint's name, or empty."""
        for base in ("/endpoints/prod", "/endpoints/prod/inference-components/any"):
            with openai.OpenAI(base_url=f"{server.url}{base}/openai/v1", api_key=token()) as client:
                answer = client.chat.completions.create(model="prod", messages=CHAT["messages"])
                assert answer.choices[0].message.content == ECHOED
                stream = client.chat.completions.create(model="", messages=CHAT["messages"], stream=True)
                assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ECHOED

    @pytest.mark.parametrize(
        ("given", "code", "message"),
        [
            (lambda: token(expires=0), "ExpiredTokenException", "Bearer Token has expired"),
            (lambda: token(secret="x"), "InvalidSignatureException", "The request signature we calculated"),
            (lambda: token("AKIANONE"), "UnrecognizedClientException", "The security token included"),
            (lambda: token(action="Other"), "UnrecognizedClientException", "The security token included"),
            (lambda: token()[:-41], "UnrecognizedClientException", "The security token included"),
            (lambda: "sagemaker-api-key-\xe9", "UnrecognizedClientException", "The security token included"),
            (lambda: "AKIALOCAL", "UnrecognizedClientException", "The security token included"),
            (lambda: "", "MissingAuthenticationTokenException", "Missing Authentication Token"),
        ],
        ids=["expired", "forged", "unknown", "action", "cut", "letter", "plain", "empty"],
    )
    def test_tokens_that_are_refused(self, server: Server, given: Any, code: str, message: str) -> None:
        headers = {"Authorization": f"Bearer {value}"} if (value := given()) else {}
        answer = requests.post(
            f"{server.url}/endpoints/prod/openai/v1/chat/completions", json=CHAT, headers=headers, timeout=60
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (403, code)
        assert error["message"].startswith(message)

    def test_errors_have_openais_shape(self, server: Server) -> None:
        with (
            openai.OpenAI(base_url=f"{server.url}/endpoints/prod/openai/v1", api_key=token(), max_retries=0) as client,
            pytest.raises(openai.APIStatusError, match=r"Received client error .* from primary with message") as caught,
        ):
            client.chat.completions.create(model="", messages=CHAT["messages"], top_p=7)
        assert (caught.value.status_code, caught.value.code, caught.value.type) == (424, "model_error", "server_error")

    def test_only_chats_are_routed(self, server: Server) -> None:
        answer = requests.post(f"{server.url}/endpoints/prod/openai/v1/completions", json={}, timeout=60)
        assert answer.status_code == 404


class TestLimits:
    def test_other_endpoints_are_not_found(self, server: Server) -> None:
        with (
            closing(boto_client(server, "AKIALOCAL", KEYS["AKIALOCAL"])) as client,
            pytest.raises(ClientError) as caught,
        ):
            client.invoke_endpoint(EndpointName="test", Body=BODY)
        assert str(caught.value).endswith("Endpoint test of account 000000000000 not found.")
        assert caught.value.response["Error"]["Code"] == "ValidationError"

    def test_names_that_no_endpoint_has(self, echo_server: Server) -> None:
        answer = requests.post(f"{echo_server.url}/endpoints/a_b/invocations", BODY, timeout=60)
        assert refused(answer)[1] == "ValidationError"
        assert "'a_b' at 'endpointName' failed to satisfy constraint" in answer.text

    def test_bodies_of_more_than_25_mebibytes(self, server: Server) -> None:
        """Refused by its announced size: the body is not read."""
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            connection.putrequest("POST", "/endpoints/prod/invocations")
            connection.putheader("Content-Length", str((25 << 20) + 1))
            connection.endheaders(b"{}")
            answer = connection.getresponse()
            assert answer.status == 413
            assert json.loads(answer.read()) == {"Message": "HTTP content length exceeded 26214400 bytes."}

    def test_two_megabytes_of_custom_attributes(self, server: Server) -> None:
        headers = {"X-Amzn-SageMaker-Custom-Attributes": "x" * 2_000_000}
        with contextlib.suppress(requests.ConnectionError):  # it may be closed while the client still sends
            assert post(server, headers).status_code in (400, 431)
        assert server.ping().status_code == 200
        assert post(server, signed(server)).status_code == 200

    def test_bidirectional_streams_are_refused(self, server: Server) -> None:
        path = "/endpoints/prod/invocations-bidirectional-stream"
        answer = requests.post(server.url + path, BODY, headers=signed(server, path=path), timeout=60)
        assert refused(answer)[:2] == (400, "ValidationError")
        assert "it needs HTTP/2" in answer.json()["Message"]

    @pytest.mark.parametrize(
        ("operation", "table"),
        [
            ("InvokeEndpoint", constraints.INVOKE),
            ("InvokeEndpointWithResponseStream", constraints.INVOKE_STREAM),
            ("InvokeEndpointAsync", constraints.INVOKE_ASYNC),
        ],
    )
    def test_every_header_has_awss_limit(self, operation: str, table: tuple[constraints.Constraint, ...]) -> None:
        shape = get_session().get_service_model("sagemaker-runtime").operation_model(operation).input_shape
        assert shape is not None
        headers = {
            member.serialization["name"].lower(): member.metadata["max"]
            for member in shape.members.values()
            if member.serialization.get("location") == "header" and member.type_name == "string"
        }
        assert {constraint.header.lower(): constraint.max_length for constraint in table} == headers


def test_mistakes_are_found_at_start(tmp_path: Any) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "serving.properties").write_text("option.rolling_batch=echo\n")
    for environ, message in (
        ({"LMI_ASYNC_OUTPUT": "s3://b/c"}, "LMI_ASYNC_OUTPUT=s3://b/c needs --local-runtime"),
        ({"LMI_LOCAL_RUNTIME": "true", "LMI_ASYNC_CONCURRENCY": "3"}, "LMI_ASYNC_CONCURRENCY=3 needs --async-output"),
        ({"LMI_LOCAL_RUNTIME": "true", "LMI_ASYNC_OUTPUT": "/tmp"}, "must be s3://bucket/prefix or file:///"),
        (
            {"LMI_LOCAL_RUNTIME": "true", "LMI_LOCAL_RUNTIME_KEYS": "/none"},
            "--local-runtime-keys /none cannot be read: FileNotFoundError",
        ),
    ):
        run = lmi_check(tmp_path / "m", environ=environ)
        assert run.returncode == 1
        assert message in run.stdout + run.stderr
