"""Who may ask: CORS and the API key, on every route."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from serving import Server, StartServer

ECHO = "option.rolling_batch=echo\n"
KEY = "s3cret-key"
POSTS = ("/", "/generate", "/generate_stream", "/tokenize", "/chat_tokenize", "/invocations", "/predictions/m", "/nope")
GETS = {"/": 200, "/health": 200, "/ping": 200, "/info": 200, "/metrics": 200, "/nope": 404}


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("guarded") / "m", ECHO, environ={"API_KEY": KEY})
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "authorization", [None, "", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY.upper()}", "Bearer é"]
)
def test_no_post_without_the_key(guarded_server: Server, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode()}
    answer = guarded_server.invoke({"inputs": "a"}, path=path, headers=headers)
    assert (answer.status_code, answer.content) == (401, b"")


@pytest.mark.parametrize("path", POSTS[:-1])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_with_the_key(guarded_server: Server, path: str, scheme: str) -> None:
    body = {"inputs": "a", "messages": [{"role": "user", "content": "a"}]}
    answer = guarded_server.invoke(body, path=path, headers={"Authorization": f"{scheme} {KEY}"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", GETS)
def test_gets_are_open(guarded_server: Server, path: str) -> None:
    assert requests.get(guarded_server.url + path, timeout=5).status_code == GETS[path]


def test_the_key_is_written_nowhere(guarded_server: Server) -> None:
    guarded_server.invoke({"inputs": "a"}, headers={"Authorization": f"Bearer {KEY}"})
    assert KEY not in guarded_server.log


def test_key_beyond_ascii(start_server: StartServer) -> None:
    server = start_server(ECHO, environ={"API_KEY": "schlüssel"})
    assert server.invoke({"inputs": "a"}).status_code == 401
    answer = server.invoke({"inputs": "a"}, headers={"Authorization": "Bearer schlüssel".encode()})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/generate", "/nope"])
def test_preflight(echo_server: Server, path: str) -> None:
    answer = requests.options(echo_server.url + path, headers={"Origin": "https://a.example"}, timeout=5)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Access-Control-Allow-Methods"] == "GET,POST"
    assert answer.headers["Access-Control-Allow-Headers"] == "content-type"
    assert answer.headers["Access-Control-Allow-Origin"] == "*"


def test_preflight_needs_no_key_and_allows_one(guarded_server: Server) -> None:
    answer = requests.options(guarded_server.url + "/generate", timeout=5)
    assert (answer.status_code, answer.headers["Access-Control-Allow-Headers"]) == (200, "content-type,authorization")


@pytest.mark.parametrize(("method", "path"), [("POST", "/generate_stream"), ("POST", "/invocations"), ("GET", "/nope")])
def test_every_response_is_marked(echo_server: Server, method: str, path: str) -> None:
    answer = requests.request(method, echo_server.url + path, json={"inputs": "a"}, timeout=5)
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert answer.headers["Vary"] == "origin, access-control-request-method, access-control-request-headers"


def test_only_listed_origins(start_server: StartServer) -> None:
    server = start_server(ECHO + "cors_allowed_origin=https://a.example, https://b.example\n")
    origins = {
        "https://a.example": "https://a.example",
        "https://b.example": "https://b.example",
        "https://c.example": None,
    }
    for origin, allowed in origins.items():
        answer = requests.get(server.url + "/health", headers={"Origin": origin}, timeout=5)
        assert answer.headers.get("Access-Control-Allow-Origin") == allowed
