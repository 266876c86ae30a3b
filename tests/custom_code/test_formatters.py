"""Servers whose model.py formats what goes into an engine and what comes out of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from facts import Said, says
from formatter_scripts import IDENTITY, RESPONSES, SHOUTING, TOKENS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neighbours import Neighbours
from serving import Server
from waiting import wait_until

PROCESS = "lmi_handlers.custom_code.formatting.process"
ECHO = "option.rolling_batch=echo\noption.max_model_len=4096\n"


def serve(directory: Path, files: dict[str, str], properties: str = "") -> Server:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    return Server(directory, ECHO + properties, "--workers", "1")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    files = {"model.py": TOKENS, "shouting.py": SHOUTING}
    server = serve(
        tmp_path_factory.mktemp("formatters") / "m",
        files,
        "option.formatter_timeout=2\noption.echo_tokens_per_second=40\noption.response_deadline=100\n",
    )
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def responses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = serve(
        tmp_path_factory.mktemp("formatters") / "m", {"model.py": RESPONSES}, "option.echo_tokens_per_second=40\n"
    )
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pace = "option.echo_tokens_per_second=50\n"
    server = serve(tmp_path_factory.mktemp("formatters") / "m", {"model.py": IDENTITY}, pace)
    yield server.wait_ready()
    server.stop()


def ask(server: Server, fault: str = "", *, stream: bool = False, **options: Any) -> requests.Response:
    body = {"question": "héllo", "parameters": {"max_new_tokens": 3}, "stream": stream, "fault": fault}
    return server.invoke(body, **options)


LINES = [
    {"id": 104, "text": "H", "logprob": -0.5, "prompt": "héllo"},
    {"id": 195, "text": "", "logprob": -0.5},
    {"id": 169, "text": "É", "logprob": -0.5, "reason": "length", "all": 3, "finished": True},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/invocations", "/predictions/m", "/models/m/invoke"])
def test_the_second_generation_reads_bodies_and_writes_tokens(tokens: Server, path: str, *, stream: bool) -> None:
    answer = ask(tokens, stream=stream, path=path)
    assert (answer.status_code, answer.headers.get("Content-Type")) == (200, None)
    assert ("Content-Length" in answer.headers) is not stream
    assert [json.loads(line) for line in answer.content.splitlines()] == LINES


def test_other_apis_are_not_formatted(tokens: Server) -> None:
    answer = tokens.invoke({"prompt": "abc", "max_tokens": 2}, path="/v1/completions")
    assert answer.json()["choices"][0]["text"] == "ab"


def test_each_of_several_json_lines_is_formatted(tokens: Server) -> None:
    records = [{"question": str(number), "parameters": {"max_new_tokens": 1}} for number in range(40)]
    data = "".join(json.dumps(record) + "\n" for record in [*records, {"question": "z", "fault": "raise-input"}])
    answer = requests.post(
        f"{tokens.url}/invocations", data, headers={"Content-Type": "application/jsonlines"}, timeout=60
    )
    *lines, last = map(json.loads, answer.content.splitlines())
    assert [line["prompt"] for line in lines] == [record["question"] for record in records]
    assert last["code"] == 424


def test_a_batch_continues_no_answer_even_if_a_formatter_drops_the_field(tokens: Server) -> None:
    record = {"question": "ab", "parameters": {"max_new_tokens": 1}}
    data = "".join(json.dumps(each) + "\n" for each in (record, record | {"continuation": "x"}))
    answer = requests.post(
        f"{tokens.url}/invocations", data, headers={"Content-Type": "application/jsonlines"}, timeout=60
    )
    plain, continued = map(json.loads, answer.content.splitlines())
    assert plain["text"] == "A"
    assert (continued["code"], says(continued["error"], "continuation: batch")) == (424, True)


def test_other_clients_do_not_wait_for_a_large_body_of_any_type(identity: Server) -> None:
    """A body that is not called JSON may be anything, and is not decoded to look for fields of the server's own."""
    data = b'{"requestType": "x", "continuation": "x"' + b"".join(b',"%07d":1' % number for number in range(1_400_000))
    with Neighbours(identity) as neighbours:
        answer = identity.invoke(data=data + b"}", headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code in (413, 424), answer.text[:200]
    assert neighbours.grown_mib < 150


def test_a_body_that_is_no_json_may_have_the_name_of_any_field(tokens: Server) -> None:
    answer = tokens.invoke(data=b'"requestType"', headers={"Content-Type": "text/csv"})
    assert says(answer.json()["error"], "formatter"), answer.text


def test_what_a_formatter_writes_in_several_lines_stays_one_line_of_a_batch(tokens: Server) -> None:
    records = [{"question": "ab", "parameters": {"max_new_tokens": count}} for count in (2, 1)]
    records.append({**records[1], "fault": "deep"})
    data = "".join(json.dumps(record) + "\n" for record in records)
    answer = requests.post(
        f"{tokens.url}/invocations", data, headers={"Content-Type": "application/jsonlines"}, timeout=60
    )
    several, single, deep = map(json.loads, answer.content.splitlines())
    assert [json.loads(line)["text"] for line in several.splitlines()] == ["A", "B"]
    assert single["text"] == "A"
    assert deep == ("[\n" * 5000).strip()


def test_a_formatter_that_raises_ends_its_request(tokens: Server) -> None:
    answer = ask(tokens, "raise-input")
    assert (answer.status_code, answer.json()["code"]) == (424, 424)
    assert says(answer.json()["error"], "formatter ValueError no input")
    answer = ask(tokens, "raise-output")
    assert (answer.status_code, says(answer.json()["error"], "formatter failed ValueError no output")) == (
        424,
        True,
    )
    answer = ask(tokens, "raise-output", stream=True)
    first, last = map(json.loads, answer.content.splitlines())
    assert (answer.status_code, first["text"]) == (200, "H")
    assert last == {"error": Said("formatter failed ValueError no output"), "code": 424}
    entry = next(line for line in tokens.log.splitlines() if '"a formatter failed"' in line)
    stack = json.loads(entry)["exception"]
    assert "model.py" in stack
    assert "lmi_handlers" not in stack
    assert ask(tokens).status_code == 200


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_formatter_that_exits_ends_only_its_request(tokens: Server, place: str) -> None:
    before = tokens.supervised(PROCESS)
    answer = ask(tokens, f"leave-{place}")
    assert (answer.status_code, says(answer.json()["error"], "formatter SystemExit 3")) == (424, True)
    assert ask(tokens).status_code == 200
    assert tokens.supervised(PROCESS) == before


def test_what_a_formatter_must_not_return_is_told(tokens: Server) -> None:
    answer = ask(tokens, "type")
    assert answer.status_code == 424
    assert says(answer.json()["error"], "TypeError write NoneType str")


@pytest.mark.parametrize("fault", ["exit-input", "exit-output", "hang-output", "sleep-input"])
def test_a_process_that_dies_or_hangs_is_replaced(tokens: Server, fault: str) -> None:
    before = tokens.supervised(PROCESS)
    answer = ask(tokens, fault)
    assert answer.status_code == 424
    assert says(answer.json()["error"], "runs formatters ended")
    wait_until(lambda: not before.is_running())
    tokens.wait_ready()
    assert ask(tokens).status_code == 200
    assert tokens.supervised(PROCESS) != before
    if fault == "hang-output":
        assert "in fault" in tokens.log  # the stack of the process that hung


def test_other_requests_go_on_while_a_formatter_hangs(tokens: Server) -> None:
    hanging = threading.Thread(target=ask, args=(tokens, "sleep-input"))
    hanging.start()
    answered = 0
    while hanging.is_alive():
        answered += tokens.invoke({"prompt": "a", "max_tokens": 1}, path="/v1/completions").ok and hanging.is_alive()
    assert answered
    tokens.wait_ready()
    assert ask(tokens).status_code == 200


def test_the_third_generation_changes_responses(responses: Server) -> None:
    document = responses.invoke({"question": "abc", "parameters": {"max_new_tokens": 2}})
    assert document.headers["Content-Type"] == "application/json"
    assert document.content.endswith(b"\n")
    assert document.json()["choices"][0]["text"] == "<ab>"
    assert document.json()["processed_by"] == "me"
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert responses.invoke(chat).json()["choices"][0]["message"]["content"].startswith("[")


def test_the_third_generation_changes_streams(responses: Server) -> None:
    plain = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    stream = responses.invoke(plain | {"stream": True}, headers={"Accept": "text/event-stream"})
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    *events, done = stream.text.split("\n\n")[:-1]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]"
    assert all(chunk["processed_by"] == "me" for chunk in chunks)
    expected = responses.invoke(plain, path="/v1/chat/completions").json()["choices"][0]["message"]["content"]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == expected.upper()
    lines = responses.invoke(plain | {"stream": True})
    assert lines.headers["Content-Type"] == "application/jsonlines"
    assert [json.loads(line)["processed_by"] for line in lines.content.splitlines()] == ["me"] * len(chunks)
    lines = responses.invoke({"inputs": "abc", "stream": True, "parameters": {"max_new_tokens": 2}})
    assert lines.headers["Content-Type"] == "application/jsonlines"
    assert [json.loads(line)["choices"][0]["text"] for line in lines.content.splitlines()] == ["<a>", "<b>"]


@given(
    text=st.text(min_size=1, max_size=20),
    n=st.integers(1, 3),
    stream=st.booleans(),
    details=st.booleans(),
    is_list=st.booleans(),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_identity_changes_nothing(
    identity: Server, echo_server: Server, text: str, n: int, *, stream: bool, details: bool, is_list: bool
) -> None:
    body = {
        "inputs": [text, "x"] if is_list else text,
        "stream": stream,
        "parameters": {"max_new_tokens": 4, "n": n, "details": details},
    }
    plain, formatted = echo_server.invoke(body), identity.invoke(body)
    assert formatted.status_code == plain.status_code
    assert formatted.headers["Content-Type"] == plain.headers["Content-Type"]
    assert formatted.content.rstrip(b"\n") == plain.content.rstrip(b"\n")


def test_errors_of_the_request_are_as_without_formatters(identity: Server, echo_server: Server) -> None:
    for body in ({}, {"inputs": ""}, {"inputs": "x", "parameters": {"temperature": -1}}):
        plain, formatted = echo_server.invoke(body), identity.invoke(body)
        assert (formatted.status_code, formatted.content) == (plain.status_code, plain.content)
