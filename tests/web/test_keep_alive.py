"""`option.sse_keep_alive`: a stream of events that is silent says that it goes on, and clients see nothing of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from raw_http import connect, dechunked, read_to_end, request
from server_sent_events import event_data, json_events
from serving import Server

COMMENT = ": keep-alive\n\n"
TEXT = "ab"
MESSAGES = [{"role": "user", "content": TEXT}]
PROPERTIES = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.echo_tokens_per_second=0.4\noption.sse_keep_alive=1\n"
    "option.predict_timeout=30\noption.web_workers=1\n"
)
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "stream": True}),
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": 2, "stream": True}),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 2, "stream": True}),
    "tgi": ("/generate_stream", {"inputs": TEXT, "parameters": {"max_new_tokens": 2}}),
    "anthropic": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2, "stream": True}),
    "lines": ("/invocations", {"inputs": TEXT, "parameters": {"max_new_tokens": 2}, "stream": True}),
}


@pytest.fixture(scope="module", params=["gevent", "gthread"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environ = {"GUNICORN_CMD_ARGS": f"--worker-class {request.param}"} if request.param == "gthread" else {}
    server = Server(tmp_path_factory.mktemp("silent") / "m", PROPERTIES, environ=environ)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def answers(server: Server) -> dict[str, requests.Response]:
    """Of all APIs at once: each takes five seconds."""
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        sent = {name: pool.submit(server.invoke, body, path=path) for name, (path, body) in STREAMS.items()}
        return {name: answer.result() for name, answer in sent.items()}


@pytest.mark.parametrize("name", ["chat", "completions", "responses", "tgi"])
def test_a_stream_of_events_has_comments(answers: dict[str, requests.Response], name: str) -> None:
    answer = answers[name]
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream")
    assert answer.text.count(f"\n\n{COMMENT}") >= 1
    events = event_data(answer.text.replace(COMMENT, ""))
    if name == "tgi":
        assert json.loads(events[-1])["generated_text"] == TEXT
    else:
        assert len(re.findall(r'"(?:content|text|delta)":"\w"', "".join(events))) == 2


def test_anthropics_streams_have_pings(answers: dict[str, requests.Response]) -> None:
    text = answers["anthropic"].text
    assert ":" not in {line[:1] for line in text.splitlines()}
    kinds = [event["type"] for event in json_events(text)]
    assert kinds[:2] == ["message_start", "ping"]
    assert "ping" in kinds[2:]
    assert kinds.count("message_start") == 1
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert re.findall(r"^event: (.*)$", text, re.M) == kinds


def test_json_lines_have_none(answers: dict[str, requests.Response]) -> None:
    assert [json.loads(line)["token"]["text"] for line in answers["lines"].text.splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "body", "first", "later"),
    [
        ("/v1/completions", {"prompt": "HANG@0"}, COMMENT, COMMENT),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "HANG@0"}]},
            "event: message_start\n",
            "event: ping\n",
        ),
    ],
)
def test_before_the_first_token_until_the_client_leaves(
    server: Server, path: str, body: dict[str, Any], first: str, later: str
) -> None:
    with connect(server, request(body | {"max_tokens": 2, "stream": True}, path)) as sock:
        received = b""
        while received.count(later.encode()) < 3:
            received += sock.recv(1 << 16)
    head, _, chunks = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert chunks.partition(b"\r\n")[2].startswith(first.encode())
    server.wait_for_sequences(0)


def test_an_error_after_a_comment_is_an_event(server: Server) -> None:
    """It is the last test, because the engine is started again."""
    body = {"prompt": "HANG@0", "max_tokens": 2, "stream": True}
    with connect(server, request(body, "/v1/completions", "Connection: close")) as sock:
        received = b""
        while COMMENT.encode() not in received:
            received += sock.recv(1 << 16)
        server.engine().kill()
        received += read_to_end(sock)
    assert received.startswith(b"HTTP/1.1 200 ")
    events = event_data(dechunked(received).decode().replace(COMMENT, ""))
    assert json.loads(events[0])["error"]["type"] == "server_error"
