"""What the front end says by itself: to a browser at `/`, and where there is no such route."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import requests
from serving import Server, StartServer

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


def get(server: Server, path: str, accept: str | None = None) -> requests.Response:
    return requests.get(server.url + path, headers={"Accept": accept}, timeout=30)


# The page


def test_a_browser_is_told_what_this_is(echo_server: Server) -> None:
    answer = get(echo_server, "/", BROWSER)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "accept" in answer.headers["Vary"].split(", ")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "<h1>m</h1>" in answer.text
    assert "<strong>ready</strong>" in answer.text
    routes = re.findall(r"<li><code>(.+)</code></li>", answer.text)
    assert {"GET /ping", "POST /generate", "POST /v1/chat/completions"} <= {
        f"{method} {route.partition(' ')[2]}" for route in routes for method in route.partition(" ")[0].split("/")
    }


def test_its_curl_lines_work(echo_server: Server) -> None:
    commands = [
        unescape(text) for text in re.findall(r"<pre>(.+?)</pre>", get(echo_server, "/", BROWSER).text, re.DOTALL)
    ]
    assert len(commands) == 3
    for command in commands:
        shell = ["sh", "-c", command.replace("curl ", "curl -sSf ", 1)]
        run = subprocess.run(shell, capture_output=True, text=True, timeout=30, check=True)
        assert "What is Deep" in run.stdout or '"What' in run.stdout


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/html;q=0, */*"])
@pytest.mark.parametrize("path", ["/", "/health"])
def test_others_are_told_no_more_than_health(echo_server: Server, path: str, accept: str | None) -> None:
    answer = get(echo_server, path, accept)
    assert (answer.status_code, answer.content) == (200, b"")


def test_health_has_no_page(echo_server: Server) -> None:
    assert get(echo_server, "/health", BROWSER).content == b""


def test_the_page_while_the_model_loads(start_server: StartServer) -> None:
    slow = "option.echo_fault=slow_load\noption.echo_load_seconds=60\n"
    server = start_server("option.rolling_batch=echo\n" + slow, ready=False)
    deadline = time.monotonic() + 60
    while "listening on" not in server.log:
        assert time.monotonic() < deadline, server.log
        time.sleep(0.1)
    answer = get(server, "/", BROWSER)
    assert (answer.status_code, "<strong>not ready: " in answer.text) == (503, True)


def test_nothing_of_a_request_becomes_markup(echo_server: Server) -> None:
    answer = requests.get(f"{echo_server.url}/", headers={"Accept": "text/html", "Host": '"><script>'}, timeout=30)
    assert "<script>" not in answer.text


# No such route

Says = Callable[[Any], str]


def openai(answer: Any) -> str:
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    return str(answer["error"]["message"])


def anthropic(answer: Any) -> str:
    assert (answer["type"], answer["error"]["type"]) == ("error", "not_found_error")
    return str(answer["error"]["message"])


def aleph_alpha(answer: Any) -> str:
    assert answer["code"] == "NOT_FOUND"
    return str(answer["error"])


def tgi(answer: Any) -> str:
    assert answer["error_type"] == "validation"
    return str(answer["error"])


def ollama(answer: Any) -> str:
    assert answer.keys() == {"error"}
    return str(answer["error"])


def djl(answer: Any) -> str:
    assert (answer["code"], answer["type"]) == (404, "ResourceNotFoundException")
    return str(answer["message"])


BELOW_V1 = "GET /v1/models, GET /v1/models/<model>"


@pytest.mark.parametrize(
    ("path", "shape", "words"),
    [
        ("/v1/embeddings", openai, "below /v1 there are POST /v1/chat/completions, POST /v1/completions, " + BELOW_V1),
        ("/v1/audio/speech", openai, "POST /v1/chat/completions"),
        ("/v1/responses", openai, "does not support this API; use POST /v1/chat/completions"),
        ("/v1/responses/resp_1", openai, "does not support this API; use POST /v1/chat/completions"),
        ("/v1/messages", anthropic, "does not support this API; use POST /v1/chat/completions"),
        ("/v1/v1/chat/completions", openai, "did you mean POST /v1/chat/completions?"),
        ("/v1/chat/completion", openai, "did you mean POST /v1/chat/completions?"),
        ("/completions", djl, "did you mean POST /v1/completions?"),
        ("/chat", aleph_alpha, "GET /openapi.json"),
        ("/generate/", tgi, "did you mean POST /generate?"),
        ("/api/chat", ollama, "does not support this API; use POST /v1/chat/completions"),
        ("/v2/models/m/infer", djl, "does not support this API; use POST /v1/chat/completions"),
        ("/nope", djl, "GET /openapi.json describes those there are"),
    ],
)
def test_a_missing_route_says_what_there_is(echo_server: Server, path: str, shape: Says, words: str) -> None:
    answer = echo_server.invoke({}, path=path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/json")
    message = shape(answer.json())
    assert message.startswith(f"{path} is not a route of this server")
    assert words in message


def test_the_runtime_api_without_its_option(start_server: StartServer, echo_server: Server) -> None:
    server = start_server("option.rolling_batch=echo\n")
    answer = server.invoke({}, path="/endpoints/x/invocations")
    assert (answer.status_code, answer.headers["x-amzn-ErrorType"]) == (404, "ResourceNotFoundException")
    assert "start it with --local-runtime" in answer.json()["Message"]
    other = echo_server.invoke({}, path="/endpoints/x/invocation-streams")
    assert (other.status_code, "POST /endpoints/<endpoint>/invocations" in other.json()["Message"]) == (404, True)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/generate", lambda answer: answer["error"]),
        ("/v1/chat/completions", lambda answer: answer["error"]["message"]),
        ("/invocations", lambda answer: answer["message"]),
    ],
)
def test_a_wrong_method_says_which_is_right(echo_server: Server, path: str, message: Says) -> None:
    answer = get(echo_server, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert message(answer.json()) == f"GET is not allowed on {path}: POST is"


def test_a_long_path_is_cut(echo_server: Server) -> None:
    assert len(get(echo_server, "/v1/" + "x" * 5000).content) < 600
