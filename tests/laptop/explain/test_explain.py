"""`POST /explain` and `lmi explain`: what would happen to a request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
from facts import says
from model_store import ECHO, StoreServer
from serving import Server
from waiting import wait_until

HELLO = [{"role": "user", "content": "hello"}]


def ask(server: Server, body: object, route: str = "/invocations") -> requests.Response:
    return server.invoke({"route": route, "body": body}, path="/explain")


def explained(server: Server, body: object, route: str = "/invocations") -> dict[str, Any]:
    answer = ask(server, body, route)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_a_body_of_lmi(echo_server: Server) -> None:
    body = {"inputs": "hé", "parameters": {"max_new_tokens": 5, "top_k": 3, "do_sample": True, "typo": 1}}
    document = explained(echo_server, body)
    assert (document["dialect"], document["engine"], document["task"]) == ("lmi", "echo", "generate")
    assert document["prompts"] == [{"text": "hé", "num_tokens": 3, "token_ids": list("hé".encode())}]
    assert document["ignored_fields"] == ["typo"]
    assert document["format"] == {
        "formatter": "JsonFormatter",
        "content_type": "application/json",
        "streams": False,
    }
    values = document["sampling_params"]
    assert values["top_k"] == {"value": 3, "origin": "request", "field": "parameters.top_k"}
    assert values["max_tokens"] == {"value": 5, "origin": "request", "field": "parameters.max_new_tokens"}
    assert document["limits"]["max_tokens"] == 5
    values = explained(echo_server, {"inputs": "x", "parameters": {"temperature": None}})["sampling_params"]
    assert values["temperature"] == {"value": 0.0, "origin": "API"}  # the body has no field for it


@pytest.mark.parametrize(
    ("route", "body", "dialect", "field"),
    [
        ("/invocations", {"messages": HELLO}, "openai chat", "messages"),
        ("/invocations", "plain text", "lmi", None),
        ("/v1/chat/completions", {"messages": HELLO, "model": "m"}, "openai chat", None),
        ("/v1/completions", {"prompt": "a", "model": "m"}, "openai completions", None),
        ("/v1/messages", {"messages": HELLO, "model": "m", "max_tokens": 5}, "anthropic messages", None),
        ("/generate", {"inputs": "a"}, "tgi generate", None),
        ("/complete", {"prompt": "a", "model": "m", "maximum_tokens": 4}, "aleph alpha completion", None),
    ],
)
def test_the_api_and_why(echo_server: Server, route: str, body: object, dialect: str, field: str | None) -> None:
    document = explained(echo_server, body, route)
    assert (document["dialect"], document.get("chosen_by_field")) == (dialect, field)


def test_no_value_is_from_an_ignored_field(echo_server: Server) -> None:
    document = explained(echo_server, {"inputs": "a", "parameters": {"min_p": 0.5}}, "/generate")
    assert document["ignored_fields"] == ["min_p"]
    assert "min_p" not in document["sampling_params"]


def test_a_prompt_after_the_chat_template_is_that_of_the_answer(echo_server: Server) -> None:
    body = {"messages": HELLO, "model": "m"}
    [prompt] = explained(echo_server, body, "/v1/chat/completions")["prompts"]
    answer = echo_server.invoke(body, path="/v1/chat/completions").json()
    assert prompt["num_tokens"] == len(prompt["token_ids"]) == answer["usage"]["prompt_tokens"]
    assert prompt["text"] == bytes(prompt["token_ids"]).decode()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/invocations", {"inputs": "hello", "parameters": {"top_p": 7}}),
        ("/invocations", {"inputs": "x" * 5000}),
        ("/invocations", {}),
        ("/v1/chat/completions", {"messages": HELLO, "temperature": -1}),
        ("/v1/messages", {"messages": HELLO}),
    ],
)
def test_a_request_that_would_be_refused_gets_that_error(echo_server: Server, route: str, body: object) -> None:
    found, real = ask(echo_server, body, route), echo_server.invoke(body, path=route)
    assert (found.status_code, found.content) == (real.status_code, real.content)
    assert 400 <= found.status_code < 500


@pytest.mark.parametrize("body", [{"requestType": "NEW_SESSION"}, {"inputs": "HANG@1"}, {"inputs": "RAISE@1"}])
def test_nothing_is_done(echo_server: Server, body: object) -> None:
    answer = ask(echo_server, body)
    assert not [name for name in answer.headers if "session" in name.lower()]
    assert answer.status_code == (424 if "requestType" in body else 200)  # type: ignore[operator]  # a dict
    assert echo_server.sequences() == (0, 0)


@pytest.mark.parametrize(
    ("sent", "facts"),
    [
        ({"route": "/ping", "body": {}}, "route"),
        ({"route": "/explain", "body": {}}, "route"),
        ({"route": "/v1/models", "body": {}}, "route"),
        ({"route": "/endpoints/x/invocations", "body": {}}, "route"),
        ({"route": "http://127.0.0.1/invocations", "body": {}}, "route"),
        ({"route": "", "body": {}}, "route"),
        ({"route": "/predictions/日本", "body": {}}, "route"),
        ({"route": 1.5, "body": {}}, "route"),
        ({"body": {}}, "route"),
        ({"route": "/invocations"}, "body"),
        ({"route": "/invocations", "body": {}, "other": 1}, "other"),
        ([], "object"),
    ],
)
def test_questions_that_make_no_sense(echo_server: Server, sent: object, facts: str) -> None:
    answer = echo_server.invoke(sent, path="/explain")
    assert answer.status_code == 400
    assert says(answer.json()["message"].replace("`", " "), facts)


NESTED = b'{"route": "/invocations", "body": ' + b"[" * 5000


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"route": "/invocations", "body": "\xff"}', NESTED])
def test_bodies_that_are_no_json(echo_server: Server, data: bytes) -> None:
    answer = requests.post(f"{echo_server.url}/explain", data, headers={"Content-Type": "application/json"}, timeout=60)
    assert answer.status_code == 400


def test_a_large_body_is_refused(echo_server: Server) -> None:
    assert ask(echo_server, {"inputs": "x" * (1 << 20)}).status_code == 413
    answer = requests.post(f"{echo_server.url}/explain", b"{}", headers={"Content-Encoding": "gzip"}, timeout=60)
    assert answer.status_code == 415


def test_the_request_log_says_what_was_asked(echo_server: Server) -> None:
    answer = ask(echo_server, {"inputs": "x"})
    identifier = answer.headers["x-request-id"]
    wait_until(lambda: identifier in echo_server.log)
    [line] = [json.loads(line) for line in echo_server.log.splitlines() if identifier in line]
    assert (line["path"], line["status"]) == ("/explain", 200)


def test_a_server_that_others_can_reach_explains_nothing(guarded_server: Server) -> None:
    answer = requests.post(
        f"{guarded_server.url}/explain", json={}, headers={"Authorization": "Bearer s3cret-key"}, timeout=60
    )
    assert answer.status_code == 404
    assert says(answer.json()["message"], "/explain option.console=true")


def test_a_server_with_several_models_explains_nothing(tmp_path: Path) -> None:
    server = StoreServer(tmp_path, {"m": ECHO})
    try:
        server.wait_listening()
        answer = server.ask("POST", "/explain", json={"route": "/invocations", "body": {}})
        assert (answer.status_code, says(answer.json()["message"], "several models")) == (400, True)
    finally:
        server.stop()


def explain_command(server: Server, *arguments: str, body: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "explain", "--url", server.url, *arguments]
    return subprocess.run(command, input=body, capture_output=True, text=True, timeout=120, check=False)


def test_command(echo_server: Server) -> None:
    body = json.dumps({"inputs": "ab", "parameters": {"max_new_tokens": 7, "top_k": 4, "do_sample": True}})
    result = explain_command(echo_server, body)
    assert result.returncode == 0, result.stderr
    assert says(result.stdout, "top_k 4 request (parameters.top_k)")
    assert says(result.stdout, "Answer 7 tokens")
    document = json.loads(explain_command(echo_server, "--json", "--text", "-", body="hello").stdout)
    assert document["prompts"][0]["text"] == "hello"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (('{"inputs": "a", "parameters": {"top_p": 7}}',), "424 parameters.top_p:"),
        (("no JSON",), "JSON"),
        (("[" * 10_000,), "JSON"),
        (("--route", "/generate", '{"inputs": "a", "inputs": "b"}'), "422 duplicate field inputs"),
        (("@nowhere.json",), "nowhere.json"),
        (("--route", "/ping", "{}"), "400 route:"),
    ],
)
def test_command_without_an_answer(echo_server: Server, arguments: tuple[str, ...], facts: str) -> None:
    result = explain_command(echo_server, *arguments)
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert says(result.stderr, facts)
