"""Who may send requests to each route: web pages, clients with the API key, clients of the runtime API."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError
from facts import says
from serving import API_KEY, Server, free_port

ECHO = "option.rolling_batch=echo\n"
POSTS = ("/", "/generate", "/generate_stream", "/tokenize", "/chat_tokenize", "/invocations", "/predictions/m", "/nope")
GETS = {"/": 200, "/health": 200, "/ping": 200, "/info": 200, "/metrics": 200, "/nope": 404}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "authorization",
    [None, "", API_KEY, f"Basic {API_KEY}", f"Bearer {API_KEY}x", f"Bearer {API_KEY.upper()}", "Bearer é"],
)
def test_posts_without_the_key_are_rejected(guarded_server: Server, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode()}
    answer = guarded_server.invoke({"inputs": "a"}, path=path, headers=headers)
    assert (answer.status_code, answer.content) == (401, b"")


@pytest.mark.parametrize("path", POSTS[:-1])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_posts_with_the_key_are_answered(guarded_server: Server, path: str, scheme: str) -> None:
    body = {"inputs": "a", "messages": [{"role": "user", "content": "a"}]}
    answer = guarded_server.invoke(body, path=path, headers={"Authorization": f"{scheme} {API_KEY}"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", GETS)
def test_gets_need_no_key(guarded_server: Server, path: str) -> None:
    assert requests.get(guarded_server.url + path, timeout=60).status_code == GETS[path]


def test_key_is_never_logged(guarded_server: Server) -> None:
    guarded_server.invoke({"inputs": "a"}, headers={"Authorization": f"Bearer {API_KEY}"})
    assert API_KEY not in guarded_server.log


# Web pages

OWN = "own"
"""Placeholder for the server's own origin."""

LOCAL_PAGES = ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173", "http://app.localhost", OWN)
FOREIGN_PAGES = ("https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.evil.example")
VARY = "origin, access-control-request-method, access-control-request-headers"
GENERATING = (
    "/",
    "/generate",
    "/generate_stream",
    "/invocations",
    "/predictions/m",
    "/models/m/invoke",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/chat/completions",
    "/complete",
    "/endpoints/m/invocations",
    "/endpoints/m/invocations-response-stream",
)
BODIES: dict[str, object] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    "/complete": {"model": "m", "prompt": "a", "maximum_tokens": 1},
}


def post(server: Server, path: str, headers: Mapping[str, str | bytes]) -> requests.Response:
    """Send a request like a web page, without a preflight if `path` accepts that."""
    return server.invoke(BODIES.get(path, {"inputs": "a"}), path=path, headers=headers)


def origin_of(server: Server, page: str) -> str:
    return server.url if page == OWN else page


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("page", FOREIGN_PAGES)
def test_page_from_another_origin_is_rejected(echo_server: Server, path: str, page: str) -> None:
    answer = post(echo_server, path, {"Origin": page})
    assert answer.status_code == 403
    assert "cors_allowed_origin" in answer.text
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_that_hides_its_origin_is_rejected(echo_server: Server, site: str) -> None:
    assert post(echo_server, "/invocations", {"Sec-Fetch-Site": site}).status_code == 403


def test_requests_without_preflight_are_rejected_too(echo_server: Server) -> None:
    """A form on any web page can send this."""
    headers = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    answer = requests.post(f"{echo_server.url}/invocations", b'{"inputs": "a"}', headers=headers, timeout=60)
    assert answer.status_code == 403


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("page", [None, *LOCAL_PAGES])
def test_local_pages_and_other_clients_are_allowed(echo_server: Server, path: str, page: str | None) -> None:
    """The body may be invalid, but access is granted."""
    headers = {} if page is None else {"Origin": origin_of(echo_server, page)}
    answer = post(echo_server, path, headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("Access-Control-Allow-Origin") == headers.get("Origin")


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_headers_that_browsers_send_from_the_servers_own_pages(echo_server: Server, site: str) -> None:
    assert post(echo_server, "/invocations", {"Sec-Fetch-Site": site}).status_code == 200


SHAPES = {
    "/v1/chat/completions": lambda answer: answer["error"]["message"],
    "/generate": lambda answer: (answer["error_type"] == "validation") and answer["error"],
    "/": lambda answer: (answer["error_type"] == "validation") and answer["error"],
    "/complete": lambda answer: (answer["code"] == "FORBIDDEN") and answer["error"],
    "/invocations": lambda answer: (answer["code"] == 403) and answer["message"],
    "/endpoints/m/invocations": lambda answer: answer["Message"],
}


@pytest.mark.parametrize("path", SHAPES)
def test_rejection_has_the_shape_of_the_api(echo_server: Server, path: str) -> None:
    answer = post(echo_server, path, {"Origin": "https://evil.example"})
    assert "'https://evil.example'" in SHAPES[path](answer.json())


@pytest.mark.parametrize("path", ["/generate", "/nope"])
def test_preflight(echo_server: Server, path: str) -> None:
    for origin, allowed in {"http://localhost:3000": "http://localhost:3000", "https://evil.example": None}.items():
        answer = requests.options(echo_server.url + path, headers={"Origin": origin}, timeout=60)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["Access-Control-Allow-Methods"] == "GET,POST,PUT,DELETE"
        assert answer.headers["Access-Control-Allow-Headers"] == "content-type"
        assert answer.headers.get("Access-Control-Allow-Origin") == allowed


def test_preflight_of_the_openai_client(echo_server: Server) -> None:
    """The client always sends a key and headers of its own."""
    asked = "authorization,content-type,x-stainless-os"
    for origin, allowed in {"http://localhost:3000": asked, "https://evil.example": "content-type"}.items():
        headers = {"Origin": origin, "Access-Control-Request-Headers": asked}
        answer = requests.options(echo_server.url + "/v1/chat/completions", headers=headers, timeout=60)
        assert answer.headers["Access-Control-Allow-Headers"] == allowed


def test_preflight_needs_no_key_but_allows_the_key_header(guarded_server: Server) -> None:
    answer = requests.options(guarded_server.url + "/generate", timeout=60)
    assert (answer.status_code, answer.headers["Access-Control-Allow-Headers"]) == (200, "content-type,authorization")


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that allows all pages, like TGI by default."""
    server = Server(tmp_path_factory.mktemp("open") / "m", ECHO + "cors_allowed_origin=*\n", "--local-runtime")
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("path", GENERATING)
def test_all_origins_can_be_allowed(open_server: Server, path: str) -> None:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Host": "evil.example"}
    answer = post(open_server, path, headers)
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, "*"), answer.text


@pytest.mark.parametrize(("method", "path"), [("POST", "/generate_stream"), ("POST", "/invocations"), ("GET", "/nope")])
def test_every_response_has_cors_headers(open_server: Server, method: str, path: str) -> None:
    answer = requests.request(method, open_server.url + path, json={"inputs": "a"}, timeout=60)
    assert (answer.headers["Access-Control-Allow-Origin"], answer.headers["Vary"]) == ("*", VARY)


# DNS rebinding: a page whose host name points to this machine


@pytest.mark.parametrize("path", ["/invocations", "/info", "/"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "printer",
        "printer.local",
        "host.docker.internal:8080",
        "xlocalhost",
    ],
)
def test_loopback_server_rejects_other_host_names(echo_server: Server, path: str, host: str) -> None:
    method = "POST" if path == "/invocations" else "GET"
    headers = {"Host": host, "Origin": f"http://{host}"}
    answer = requests.request(method, echo_server.url + path, json={"inputs": "a"}, headers=headers, timeout=60)
    assert (answer.status_code, "loopback" in answer.text) == (403, True)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:1", "127.0.0.1:1", "[::1]:1", "model.localhost", f"{socket.gethostname()}:8080"]
)
def test_names_of_this_machine_are_allowed(echo_server: Server, host: str) -> None:
    assert post(echo_server, "/invocations", {"Host": host}).status_code == 200


# SageMaker's runtime API on this machine


LISTED = "cors_allowed_origin=https://a.example, https://B.example/\n"
NON_ASCII_KEY = "schlüssel"


@pytest.mark.parametrize(
    ("arguments", "properties", "key", "address"),
    [
        ((), LISTED, "", "127.0.0.1"),
        (("--host", "0.0.0.0"), "", "", "0.0.0.0"),
        (("--host", "0.0.0.0"), "", NON_ASCII_KEY, "0.0.0.0"),
    ],
)
def test_local_runtime_is_only_for_this_machine(
    tmp_path: Path, arguments: tuple[str, ...], properties: str, key: str, address: str
) -> None:
    """The servers also show which of several origins is allowed, and that any character may be in a key."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "lmi_handlers.commands.cli",
        "serve",
        "--model-dir",
        str(tmp_path / "m"),
        "--local-runtime",
    ]
    command += ["--port", str(port), *arguments]
    environ = {"API_KEY": key} if key else {}
    server = Server(tmp_path / "m", ECHO + properties, command=command, port=port, environ=environ)
    try:
        server.wait_ready()
        process = psutil.Process(server.process.pid)
        listening = {item.laddr.ip for item in process.net_connections("tcp") if item.status == psutil.CONN_LISTEN}
        assert listening == {address}
        assert says(server.log, "warning: runtime not signatures") == (address == "0.0.0.0" and not key)
        # The name of a proxy, as in a cluster. Only servers on the loopback interface reject it.
        expected = 403 if address == "127.0.0.1" else 200
        headers: dict[str, str | bytes] = {"Host": "llm.example.org"}
        if key:
            assert post(server, "/invocations", headers).status_code == 401
            headers["Authorization"] = f"Bearer {key}".encode()
        assert post(server, "/invocations", headers).status_code == expected
        if properties == LISTED:
            assert_only_listed_origins_are_allowed(server)
    finally:
        server.stop()


def assert_only_listed_origins_are_allowed(server: Server) -> None:
    for origin, allowed in {
        "https://a.example": True,
        "https://b.example": True,
        "https://c.example": False,
        "http://a.example": False,
        "http://localhost:3000": False,
        server.url: True,
    }.items():
        answer = requests.get(server.url + "/health", headers={"Origin": origin}, timeout=60)
        assert answer.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
        assert post(server, "/generate", {"Origin": origin}).status_code == (200 if allowed else 403)
    # A host whose pages are allowed may also be a proxy for this server.
    assert post(server, "/generate", {"Host": "a.example"}).status_code == 200


def runtime(server: Server, access_key: str) -> Any:
    return boto3.client(
        "sagemaker-runtime",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_boto3_with_the_key(guarded_server: Server) -> None:
    """boto3 can only send it as the access key id."""
    with closing(runtime(guarded_server, API_KEY)) as client:
        call = {"EndpointName": "x", "Body": b'{"inputs": "hello"}', "ContentType": "application/json"}
        answer = client.invoke_endpoint(**call)
        assert json.loads(answer["Body"].read()) == {"generated_text": "hello"}
        with closing(client.invoke_endpoint_with_response_stream(**call)["Body"]) as events:
            assert b"hello" in b"".join(event["PayloadPart"]["Bytes"] for event in events)


def test_curl_with_the_key(guarded_server: Server) -> None:
    answer = post(guarded_server, "/endpoints/x/invocations", {"Authorization": f"Bearer {API_KEY}"})
    assert (answer.status_code, answer.json()) == (200, {"generated_text": "a"})


@pytest.mark.parametrize("access_key", ["test", API_KEY + "x", f"{API_KEY}/x", ""])
def test_boto3_without_the_key(guarded_server: Server, access_key: str) -> None:
    with closing(runtime(guarded_server, access_key or "-")) as client, pytest.raises(ClientError) as caught:
        client.invoke_endpoint(EndpointName="x", Body=b'{"inputs": "hello"}')
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 401


def test_clients_cannot_set_the_internal_header(guarded_server: Server) -> None:
    for name in ("lmi.admitted", "Lmi-Admitted"):
        assert post(guarded_server, "/invocations", {name: "true"}).status_code == 401
