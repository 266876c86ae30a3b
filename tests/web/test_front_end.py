"""The front end's own answers: the page at `/`, and errors for unknown routes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
import requests
from facts import says
from serving import Server
from waiting import wait_until

from lmi_handlers.web.start_page import start_page

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


def get(server: Server, path: str, accept: str | None = None) -> requests.Response:
    return requests.get(server.url + path, headers={"Accept": accept}, timeout=60)


# The page where the console is off


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without the console."""
    server = Server(tmp_path_factory.mktemp("plain") / "m", "option.rolling_batch=echo\noption.console=false\n")
    yield server.wait_ready()
    server.stop()


def test_page_for_browsers(plain_server: Server) -> None:
    answer = get(plain_server, "/", BROWSER)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "accept" in answer.headers["Vary"].split(", ")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "<h1>m</h1>" in answer.text
    assert "<strong>ready</strong>" in answer.text
    routes = re.findall(r"<li><code>(.+)</code></li>", answer.text)
    assert {"GET /ping", "POST /generate", "POST /v1/chat/completions"} <= {
        f"{method} {route.partition(' ')[2]}" for route in routes for method in route.partition(" ")[0].split("/")
    }


def test_curl_commands_on_the_page_work(plain_server: Server) -> None:
    commands = [
        unescape(text) for text in re.findall(r"<pre>(.+?)</pre>", get(plain_server, "/", BROWSER).text, re.DOTALL)
    ]
    assert len(commands) == 3
    for command in commands:
        shell = ["sh", "-c", command.replace("curl ", "curl -sSf ", 1)]
        run = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=True)
        assert "What is Deep" in run.stdout or '"What' in run.stdout


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/html;q=0, */*"])
@pytest.mark.parametrize("path", ["/", "/health"])
def test_clients_other_than_browsers_get_the_health_status(
    echo_server: Server, plain_server: Server, path: str, accept: str | None
) -> None:
    """With the console and without."""
    for server in (echo_server, plain_server):
        answer = get(server, path, accept)
        assert (answer.status_code, answer.content) == (200, b"")


def test_health_route_has_no_page(echo_server: Server) -> None:
    assert get(echo_server, "/health", BROWSER).content == b""


def test_page_while_there_is_no_engine(plain_server: Server) -> None:
    with plain_server.no_restart():
        plain_server.engine().kill()
        wait_until(lambda: plain_server.ping().status_code == 503)
        answer = get(plain_server, "/", BROWSER)
    assert (answer.status_code, "<strong>not ready: " in answer.text) == (503, True)
    plain_server.wait_ready()


class Outline(HTMLParser):
    """Collects a page's elements with their attribute names, and all values and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[str]]] = []
        self.data = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, [name for name, _ in attrs]))
        self.data += "".join(value or "" for _, value in attrs)

    def handle_data(self, data: str) -> None:
        self.data += data


@pytest.mark.parametrize("argument", ["model", "state", "url", "version", "routes"])
@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><b a="', "'><b a='", '" onload="x', "&lt;"])
def test_displayed_values_never_become_markup(argument: str, text: str) -> None:
    """In text as well as in attributes."""
    harmless: dict[str, Any] = {"model": "m", "state": "s", "url": "u", "version": "v", "routes": ["GET /"]}
    page = Outline(start_page(**harmless | {argument: [f"GET {text}"] if argument == "routes" else text}))
    assert page.elements == Outline(start_page(**harmless)).elements
    assert text in page.data


# Unknown routes

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


BELOW_V1 = "POST /v1/completions, POST /v1/responses, GET /v1/models, GET /v1/models/<model>"


@pytest.mark.parametrize(
    ("path", "shape", "words"),
    [
        ("/v1/moderations", openai, "POST /v1/chat/completions, " + BELOW_V1),
        ("/v1/audio/speech", openai, "POST /v1/chat/completions"),
        ("/v1/responses/resp_1", openai, "responses not stored"),
        ("/v1/responses/resp_1/input_items", openai, "responses not stored"),
        ("/v1/messages/batches", anthropic, "/v1 POST /v1/messages, POST /v1/messages/count_tokens"),
        ("/v1/v1/chat/completions", openai, "mean POST /v1/chat/completions"),
        ("/v1/chat/completion", openai, "mean POST /v1/chat/completions"),
        ("/completions", djl, "mean POST /v1/completions"),
        ("/chat", aleph_alpha, "GET /openapi.json"),
        ("/pingg", djl, "mean GET/POST /ping"),
        ("/generate/", tgi, "mean POST /generate"),
        ("/api/chat", ollama, "not support API POST /v1/chat/completions"),
        ("/v2/models/m/infer", djl, "not support API POST /v1/chat/completions"),
        ("/nope", djl, "GET /openapi.json"),
        ("/version", djl, "not support API GET /info"),
        ("/server/metrics", djl, "not support API GET /metrics"),
        ("/sleep", djl, "PUT /models/<model>?min_worker=0 lmi serve --model-store"),
        ("/models/m", djl, "lmi serve --model-store"),
        ("/adapters/mine", djl, "option.enable_lora=true"),
        ("/v1/load_lora_adapter", openai, "option.allow_runtime_lora_updating=true option.enable_lora=true"),
    ],
)
def test_error_for_an_unknown_route_suggests_the_right_one(
    echo_server: Server, path: str, shape: Says, words: str
) -> None:
    answer = echo_server.invoke({}, path=path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/json")
    message = shape(answer.json())
    assert says(message, f"{path} not route")
    assert says(message, words)


def test_responses_are_not_stored(echo_server: Server) -> None:
    url = f"{echo_server.url}/v1/responses/resp_1"
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
        answer = requests.request(method, url + path, timeout=60)
        assert (answer.status_code, openai(answer.json()).partition(": ")[2]) == (404, "responses are not stored")


def test_error_for_the_runtime_api_without_its_option(compat_server: Server, echo_server: Server) -> None:
    answer = compat_server.invoke({}, path="/endpoints/x/invocations")
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
def test_error_for_a_wrong_method_names_the_right_one(echo_server: Server, path: str, message: Says) -> None:
    answer = get(echo_server, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert says(message(answer.json()), f"GET {path} POST")


def test_long_path_is_truncated(echo_server: Server) -> None:
    assert len(get(echo_server, "/v1/" + "x" * 5000).content) < 600
