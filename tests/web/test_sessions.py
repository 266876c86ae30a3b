"""SageMaker's stateful sessions on the invoke routes: through HTTP and through boto3, with two web workers."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from facts import says
from runtime_client import runtime_client
from serving import Server, StartServer

SESSION_ID = "X-Amzn-SageMaker-Session-Id"
NEW = {"requestType": "NEW_SESSION"}
CLOSE = {"requestType": "CLOSE"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    properties = (
        "option.rolling_batch=echo\noption.session_history=true\noption.max_model_len=16384\noption.max_sessions=50\noption.max_messages=20\n"
        "option.echo_tokens_per_second=1000\n"
    )
    server = Server(tmp_path_factory.mktemp("sessions") / "m", properties, "--workers", "2", "--local-runtime")
    yield server.wait_ready()
    server.stop()


def begin(server: Server) -> str:
    answer = server.invoke(NEW)
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Amzn-SageMaker-New-Session-Id"] == answer.headers[SESSION_ID]
    session_id, expires = answer.headers[SESSION_ID].split("; ")
    assert re.fullmatch(r"Expires=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", expires)
    assert answer.json() == {"result": f"Session {session_id} created"}
    return session_id


def turn(server: Server, session_id: str, text: str, **fields: object) -> requests.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2000, **fields}
    return server.invoke(body, headers={SESSION_ID: session_id})


def content(answer: requests.Response) -> str:
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def prompt(*turns: str) -> str:
    """What the model sees, and echoes: each of its own answers has all turns before it."""
    seen = ""
    for text in turns:
        answered = f"{seen}user: {text}\nassistant: "
        seen = answered + answered + "\n"
    return answered


def test_a_client_sends_only_the_new_turn(server: Server) -> None:
    session_id = begin(server)
    assert content(turn(server, session_id, "one")) == "user: one\nassistant: "
    second = turn(server, session_id, "two")
    assert content(second) == prompt("one", "two")
    assert SESSION_ID not in second.headers
    closed = server.invoke(CLOSE, headers={SESSION_ID: session_id})
    assert closed.headers["X-Amzn-SageMaker-Closed-Session-Id"] == session_id
    assert closed.json() == {"result": f"Session {session_id} closed"}
    after = turn(server, session_id, "three")
    assert after.status_code == 400
    assert "session not found" in after.text


def test_a_stream_continues_the_conversation_too(server: Server) -> None:
    session_id = begin(server)
    assert '"finish_reason":"stop"' in turn(server, session_id, "one", stream=True).text
    assert content(turn(server, session_id, "two")) == prompt("one", "two")


def test_the_first_turn_may_begin_the_session(server: Server) -> None:
    first = turn(server, "NEW_SESSION", "one")
    session_id = first.headers[SESSION_ID].split(";")[0]
    assert content(turn(server, session_id, "two")) == prompt("one", "two")


def test_a_turn_that_fails_or_is_cut_short_is_not_kept(server: Server) -> None:
    session_id = begin(server)
    assert turn(server, session_id, "x" * 20000).status_code == 400
    body = {"messages": [{"role": "user", "content": "y" * 5000}], "stream": True, "max_tokens": 6000}
    with requests.post(
        f"{server.url}/invocations", json=body, headers={SESSION_ID: session_id}, stream=True, timeout=60
    ):
        pass  # leaves before the end
    server.wait_for_sequences(0)
    assert content(turn(server, session_id, "one")) == "user: one\nassistant: "


def test_two_turns_at_once_do_not_lose_one_silently(server: Server) -> None:
    session_id = begin(server)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda text: turn(server, session_id, text * 30), "abcd"))
    kept = [text for text, answer in zip("abcd", answers, strict=True) if answer.status_code == 200]
    assert kept
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} <= {409}
    assert all("another turn of this session" in answer.text for answer in refused)
    last = content(turn(server, session_id, "e"))
    assert {text for text in "abcd" if text * 30 in last} == set(kept)


@pytest.mark.parametrize(
    ("body", "headers", "cause"),
    [
        (CLOSE, {}, "session not found"),
        (CLOSE, {SESSION_ID: "NEW_SESSION"}, "session not found"),
        (CLOSE, {SESSION_ID: "../../etc"}, "session not found"),
        ({"requestType": "OPEN"}, {}, "requestType"),
        ({"requestType": None}, {}, "requestType"),
        ({"requestType": "CLOSE", "inputs": "x"}, {}, "unknown"),
        ({"inputs": "x"}, {SESSION_ID: "nobody"}, "session not found"),
        ({"inputs": "x"}, {SESSION_ID: "NEW_SESSION"}, "send messages"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, {SESSION_ID: "NEW_SESSION"}, "n: "),
    ],
)
def test_what_sessions_refuse(server: Server, body: object, headers: dict[str, str], cause: str) -> None:
    answer = server.invoke(body, headers=headers)
    assert answer.status_code in (400, 424)
    assert cause in answer.text


def test_a_batch_belongs_to_no_session(server: Server) -> None:
    lines = b'{"inputs": "a"}\n{"inputs": "b"}\n'
    headers = {SESSION_ID: begin(server), "Content-Type": "application/jsonlines"}
    answer = requests.post(f"{server.url}/invocations", data=lines, headers=headers, timeout=60)
    assert (answer.status_code, "JSON lines" in answer.text) == (424, True)


def test_an_invalid_first_turn_begins_no_session(server: Server) -> None:
    answer = turn(server, "NEW_SESSION", "x", max_tokens="many")
    assert answer.status_code == 400
    assert SESSION_ID not in answer.headers


def test_all_turns_together_have_a_limited_number_of_messages(server: Server) -> None:
    session_id = begin(server)
    messages = [{"role": "user", "content": "x"}] * 12
    body = {"messages": messages, "max_tokens": 1}
    first, second = (server.invoke(body, headers={SESSION_ID: session_id}) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 400)
    assert says(second.text, "25 20 option.max_messages")


def test_unfinished_messages_are_not_kept(server: Server) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    answer = server.invoke(body, headers={SESSION_ID: begin(server)})
    assert (answer.status_code, "continue_final_message" in answer.text) == (400, True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate", "/tokenize", "/chat_tokenize"])
def test_other_routes_have_no_sessions(server: Server, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "inputs": "x"}
    answer = server.invoke(body, path=path, headers={SESSION_ID: begin(server)})
    assert 400 <= answer.status_code < 500
    assert "/invocations" in answer.text


def test_too_many_sessions_are_refused_until_some_are_closed(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.max_sessions=2\n")
    first, _ = begin(server), begin(server)
    refused = server.invoke(NEW)
    assert (refused.status_code, "option.max_sessions=2" in refused.text) == (503, True)
    server.invoke(CLOSE, headers={SESSION_ID: first})
    session_id = begin(server)
    plain = server.invoke({"inputs": "x"}, headers={SESSION_ID: session_id})
    assert plain.json() == {"generated_text": "x"}, "without option.session_history, requests are answered as they are"


def test_sessions_can_be_turned_off(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.enable_stateful_sessions=false\n")
    for answer in (server.invoke(NEW), server.invoke({"inputs": "x"}, headers={SESSION_ID: "NEW_SESSION"})):
        assert answer.status_code == 424
        assert "option.enable_stateful_sessions" in answer.text


def test_eight_turns_through_boto3_while_the_engine_is_killed(server: Server) -> None:
    client = runtime_client(server.url)
    names = {"EndpointName": server.name, "ContentType": "application/json"}
    begun = client.invoke_endpoint(**names, Body=json.dumps(NEW), SessionId="NEW_SESSION")
    session_id = begun["NewSessionId"].split(";")[0]
    for number in range(8):
        if number == 4:
            server.engine().kill()
        body = json.dumps({"messages": [{"role": "user", "content": f"turn {number}"}], "max_tokens": 8})
        while True:
            with contextlib.suppress(client.exceptions.ClientError):  # while the engine restarts, clients try again
                client.invoke_endpoint(**names, Body=body, SessionId=session_id)
                break
    last = server.invoke(
        {"messages": [{"role": "user", "content": "last"}], "max_tokens": 2000}, headers={SESSION_ID: session_id}
    )
    assert re.findall(r"^user: (.*)", content(last), re.M) == [
        "turn 0",
        *(f"turn {number}" for number in range(1, 8)),
        "last",
    ]
    closed = client.invoke_endpoint(**names, Body=json.dumps(CLOSE), SessionId=session_id)
    assert closed["ClosedSessionId"] == session_id
