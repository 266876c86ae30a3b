"""Requests that TGI rejects. vectors/tgi/bad_requests.json has TGI's own answers, recorded with the limits used here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lmi_command import lmi
from paths import RECORDINGS, SUPPORT
from raw_http import connect, request
from server_sent_events import json_events
from serving import Server

from lmi_handlers.apis.tgi.body import TgiParameters

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((RECORDINGS / "tgi" / "bad_requests.json").read_text())
}
NOT_OURS = ("/v1/", "/vertex")
"""Routes that belong to other dialects or do not exist."""

DIFFERENT = {
    "051": "`/invocations` says what is wrong, where TGI says that it is none of three kinds of requests",
    "053": "the same",
    "089": "an unknown path is a JSON 404 in the shape of LMI's front end, for all routes",
    "120": "the JSON parser's own words differ",
    "122": "what is wrong with a schema, the engine's grammar library says in its own words",
    "127": "the same",
    "129": "no option turns grammar off; a backend without it is named in the error",
    "169": "there is no such case: every request ends in an answer or in a failure that says why",
    "170": "the same",
}
"""Cases with intentionally different answers, with reasons. The tests below check all of them."""

SERVER_STATES = {"087": "key", "088": "key", "164": "full queue", "168": "failing engine", "171": "still loading"}
"""Cases that need more than one request. Each has its own test below."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one token per word, an engine that accepts every parameter, and the limits of TGI's test server."""
    directory = tmp_path_factory.mktemp("tgi") / "m"
    plugin = SUPPORT / "plugin"
    spec = importlib.util.spec_from_file_location("scripted_backend", plugin / "scripted_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_model(directory)
    properties = (
        "option.rolling_batch=scripted\noption.max_model_len=512\noption.max_input_tokens=400\noption.tgi_compat=true\n"
    )
    path = os.pathsep.join(filter(None, [str(plugin), os.environ.get("PYTHONPATH")]))
    server = Server(directory, properties, environ={"PYTHONPATH": path})
    yield server.wait_ready()
    server.stop()


def send(server: Server, case: dict[str, Any]) -> requests.Response:
    headers = {"Content-Type": "application/json"} | case.get("headers", {})
    return requests.request(
        case["method"], server.url + case["route"], data=case["body"].encode(), headers=headers, timeout=60
    )


def cases(*groups: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{number} {case['route']} {case['body'][:40]}")
        for number, case in CASES.items()
        if case["group"] in groups
        and not case["route"].startswith(NOT_OURS)
        and number not in DIFFERENT
        and number not in SERVER_STATES
    ]


def test_every_case_is_tested() -> None:
    looked_at = {case.values[0]["id"] for case in cases("json_rejection", "validation", "stream_error")}
    others = {number for number, case in CASES.items() if case["route"].startswith(NOT_OURS)}
    assert set(CASES) == looked_at | others | set(DIFFERENT) | set(SERVER_STATES)


PATH = re.compile(r"target type: ([\w.\[\]]+): ")


@pytest.mark.parametrize("case", cases("json_rejection"))
def test_malformed_body(server: Server, case: dict[str, Any]) -> None:
    """The status is the same. TGI answers in plain text, we answer with a JSON error that names the same field."""
    answer = send(server, case)
    assert answer.status_code == case["status"]
    assert answer.headers["Content-Type"] == "application/json"
    error = answer.json()
    assert error["error_type"] == "validation"
    path = PATH.search(case["error_body"])
    if path is not None:
        assert f"{path[1]}: " in error["error"]
    elif "missing field" in case["error_body"]:
        assert "missing required field `inputs`" in error["error"]


@pytest.mark.parametrize("case", cases("validation"))
def test_validation(server: Server, case: dict[str, Any]) -> None:
    answer = send(server, case)
    assert (answer.status_code, answer.text) == (case["status"], case["error_body"])
    assert answer.headers["Content-Type"] == case["content_type"]


@pytest.mark.parametrize("case", cases("stream_error"))
def test_error_before_a_stream_begins_sets_the_status(server: Server, case: dict[str, Any]) -> None:
    """TGI sends status 200 and the error as the only event. We send the same error with its status."""
    answer = send(server, case)
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/json"
    assert f"data: {answer.text}\n\n" == case["error_body"]


def test_replayed_cases_are_a_go(server: Server, tmp_path: Path) -> None:
    """TGI's answers as a folder of requests, whose folders are the routes."""
    replayed = [each.values[0] for each in cases("validation")]
    replayed = [case for case in replayed if case["route"] != "/" and "headers" not in case and case["body"]]
    for case in replayed:
        folder = tmp_path / "day" / case["route"].strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{case['id']}.request.json").write_text(case["body"])
        (folder / f"{case['id']}.answer.{case['status']}.json").write_text(case["error_body"])
    report = tmp_path / "report.json"
    result = lmi("replay", "--input", str(tmp_path / "day"), "--url", server.url, "--json", str(report))
    assert result.exit_code == 0, result.output
    assert json.loads(report.read_bytes())["summary"]["outcomes"] == {"equal": len(replayed)}
    assert len(replayed) > 10


# Differences


@pytest.mark.parametrize(("number", "path"), [("051", "inputs: "), ("053", "parameters: ")])
def test_invocations_names_the_field(server: Server, number: str, path: str) -> None:
    answer = send(server, CASES[number])
    assert answer.status_code == CASES[number]["status"]
    assert path in answer.json()["error"]


def test_unknown_path(server: Server) -> None:
    answer = send(server, CASES["089"])
    assert (answer.status_code, answer.json()["type"]) == (404, "ResourceNotFoundException")


def test_grammar_that_is_not_json(server: Server) -> None:
    answer = send(server, CASES["120"])
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert answer.json()["error"].startswith("Input validation error: grammar is not valid: ")


@pytest.mark.model
def test_invalid_schemas(tiny_server: Server) -> None:
    for number, cause in (("122", "foo"), ("127", "maxLength (2) must be greater than or equal to minLength (5)")):
        answer = send(tiny_server, CASES[number])
        assert (answer.status_code, answer.json()["error_type"]) == (CASES[number]["status"], "validation")
        assert cause in answer.json()["error"]


def test_grammar_on_a_backend_without_grammars(echo_server: Server) -> None:
    answer = send(echo_server, CASES["129"])
    assert answer.status_code == 422
    assert answer.json() == {
        "error": "Input validation error: parameters.grammar: is not supported by the echo backend",
        "error_type": "validation",
    }


# Cases that need more than one request


def test_without_the_key(guarded_server: Server) -> None:
    for number in ("087", "088"):
        answer = send(guarded_server, CASES[number])
        assert (answer.status_code, answer.content) == (401, b"")
        assert "WWW-Authenticate" not in answer.headers


@pytest.fixture(scope="module")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one place in the batch and one in the queue. A request may take six seconds."""
    properties = "option.rolling_batch=echo\njob_queue_size=1\noption.max_rolling_batch_size=1\n"
    properties += "option.echo_faults=true\noption.predict_timeout=6\n"
    server = Server(tmp_path_factory.mktemp("narrow") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_overloaded(narrow_server: Server) -> None:
    """One request runs, one waits and all others are rejected. `Retry-After` is our addition."""
    server = narrow_server
    endless = request({"inputs": "a HANG@1"}, "/generate")
    with connect(server, endless):
        server.wait_for_sequences(1)
        with connect(server, endless):
            server.wait_for_sequences(1, waiting=1)
            for path in ("/generate", "/generate_stream"):
                answer = server.invoke({"inputs": "0123456789", "parameters": {}}, path=path)
                assert (answer.status_code, answer.text) == (CASES["164"]["status"], CASES["164"]["error_body"])
                assert int(answer.headers["Retry-After"]) > 0


def test_failing_engine(echo_server: Server) -> None:
    answer = requests.post(echo_server.url + "/generate", json={"inputs": "a RAISE@1"}, timeout=60)
    assert answer.status_code == CASES["168"]["status"]
    assert answer.json() == {
        "error": "Request failed during generation: the echo backend failed at token 1, as the prompt asked",
        "error_type": "generation",
    }


def test_failure_during_a_stream_is_the_last_event(echo_server: Server) -> None:
    answer = requests.post(echo_server.url + "/generate_stream", json={"inputs": "a RAISE@3"}, timeout=60)
    assert answer.status_code == 200
    events = json_events(answer.text)
    assert [event.get("index") for event in events] == [1, 2, None]
    assert events[-1]["error_type"] == "generation"


def test_timeout_and_dead_engine(narrow_server: Server) -> None:
    server = narrow_server
    server.wait_for_sequences(0)
    for prompt, status in (("a HANG@1", 504), ("a DIE@1", 424)):
        answer = requests.post(server.url + "/generate", json={"inputs": prompt}, timeout=60)
        assert (answer.status_code, answer.json()["error_type"]) == (status, "generation")


def test_still_loading(loading_server: Server) -> None:
    server = loading_server
    for path in ("/health", "/"):
        answer = requests.get(server.url + path, timeout=60)
        assert (answer.status_code, answer.text) == (CASES["171"]["status"], CASES["171"]["error_body"])
    assert requests.get(server.url + "/info", timeout=60).status_code == 503
    for path in ("/generate", "/tokenize"):
        answer = requests.post(server.url + path, json={"inputs": "a"}, timeout=60)
        assert (answer.status_code, answer.json()["error_type"]) == (503, "healthcheck")
        assert int(answer.headers["Retry-After"]) > 0


# Arbitrary bodies


VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just([])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(
    st.sampled_from(["/", "/generate", "/generate_stream", "/tokenize", "/chat_tokenize"]),
    st.fixed_dictionaries(
        {"inputs": st.text(max_size=10)},
        optional={
            "parameters": st.dictionaries(st.sampled_from(TgiParameters.__struct_fields__), VALUES, max_size=4),
            "stream": st.booleans(),
            "messages": VALUES | st.lists(st.dictionaries(st.sampled_from(["role", "content"]), VALUES), max_size=2),
        },
    )
    | VALUES,
)
def test_no_body_causes_a_server_error(echo_server: Server, path: str, body: object) -> None:
    answer = requests.post(
        echo_server.url + path, data=json.dumps(body), headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert set(answer.json()) == {"error", "error_type"}
