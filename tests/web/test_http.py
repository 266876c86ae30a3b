"""HTTP on a real server with the echo backend: routes, bodies, headers, invalid input."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import io
import json
import uuid
from collections.abc import Iterator
from typing import Any

import jsonlines
import pytest
import requests
from facts import says
from raw_http import connect, head
from server_sent_events import json_events
from serving import Server

from lmi_handlers.apis.invocations import ADAPTER_IDENTIFIER
from lmi_handlers.apis.routes import JSON, JSON_LINES

PARAMETERS = {"max_new_tokens": 64}


def generated(answer: requests.Response) -> str:
    assert answer.status_code == 200, answer.text
    text = answer.json()["generated_text"]
    assert isinstance(text, str)
    return text


# Routes


@pytest.mark.parametrize("path", ["/invocations", "/predictions/m", "/predictions/m/1", "/models/m/invoke"])
def test_invoke_routes(echo_server: Server, path: str) -> None:
    assert generated(echo_server.invoke({"inputs": "hello", "parameters": PARAMETERS}, path=path)) == "hello"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping(echo_server: Server, method: str) -> None:
    answer = requests.request(method, echo_server.url + "/ping", timeout=60)
    assert answer.status_code == 200
    assert answer.text == '{\n  "m": {\n    "status": "Healthy"\n  }\n}\n'


def test_unknown_route_and_method(echo_server: Server) -> None:
    answer = requests.get(echo_server.url + "/nope", timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (404, "ResourceNotFoundException")
    answer = requests.get(echo_server.url + "/invocations", timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (405, "MethodNotAllowedException")
    assert "POST" in answer.headers["Allow"]


def test_head_request_is_answered_without_a_body(echo_server: Server) -> None:
    with http_connection(echo_server) as connection:
        for method in ("HEAD", "GET"):  # on one connection: a stray byte would break the second answer
            connection.request(method, "/v1/models")
            answer = connection.getresponse()
            assert answer.status == 200
            assert bool(answer.read()) == (method == "GET")


@pytest.mark.parametrize("path", ["/predictions/x", "/models/x/invoke", "/invocations?model_name=x"])
def test_unknown_model(echo_server: Server, path: str) -> None:
    answer = echo_server.invoke({"inputs": "hello"}, path=path)
    expected = {"code": 404, "type": "ModelNotFoundException", "message": "Model or workflow not found: x"}
    assert (answer.status_code, answer.json()) == (404, expected)


@pytest.mark.parametrize(
    ("path", "headers", "body", "where"),
    [
        ("/invocations", {ADAPTER_IDENTIFIER: "x"}, {"inputs": "a"}, ADAPTER_IDENTIFIER),
        ("/invocations", {ADAPTER_IDENTIFIER: "x"}, {"inputs": "a", "adapters": "y"}, "adapters"),
        ("/invocations?adapter=x", {}, {"prompt": "a"}, "adapter"),
        ("/invocations", {ADAPTER_IDENTIFIER: "x", "Content-Type": JSON_LINES}, {"inputs": "a"}, ADAPTER_IDENTIFIER),
        ("/v1/completions", {ADAPTER_IDENTIFIER: "x"}, {"model": "m", "prompt": "a"}, ADAPTER_IDENTIFIER),
    ],
)
def test_error_of_an_adapter_names_where_it_came_from(
    echo_server: Server, path: str, headers: dict[str, str], body: dict[str, object], where: str
) -> None:
    headers = {"Content-Type": JSON, **headers}
    refused = echo_server.invoke(data=json.dumps(body).encode(), path=path, headers=headers)
    assert f"{where}: " in refused.text
    assert says(refused.text, "not supported echo")
    if "prompt" in body:
        assert refused.json()["error"]["param"] == where


# Bodies


def test_text_plain_body_is_the_prompt(echo_server: Server) -> None:
    answer = echo_server.invoke(data="grüße".encode(), headers={"Content-Type": "text/plain; charset=utf-8"})
    assert generated(answer) == "grüße"


def test_body_without_content_type_is_json(echo_server: Server) -> None:
    with http_connection(echo_server) as connection:
        connection.request("POST", "/invocations", b'{"inputs": "hello"}')
        assert json.loads(connection.getresponse().read()) == {"generated_text": "hello"}


def test_chunked_request_body(echo_server: Server) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"inp'
        yield b'uts": "hel'
        yield b'lo"}'

    assert generated(echo_server.invoke(data=pieces(), headers={"Content-Type": "application/json"})) == "hello"


@pytest.mark.parametrize("content_type", ["application/jsonlines", "application/x-jsonlines", "application/jsonl"])
def test_json_lines_body_gets_one_answer_per_line_in_order(echo_server: Server, content_type: str) -> None:
    records: list[dict[str, Any]] = [{"inputs": f"record {number}"} for number in range(50)]
    records[7] = {"inputs": "bad", "parameters": {"top_p": 7}}
    body = "\n\n".join(map(json.dumps, records)) + "\n"
    answer = echo_server.invoke(data=body.encode(), headers={"Content-Type": content_type})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/jsonlines"
    lines = list(jsonlines.Reader(io.StringIO(answer.text)))
    assert len(lines) == 50
    assert "top_p" in lines.pop(7)["error"]
    records.pop(7)
    assert lines == [{"generated_text": record["inputs"]} for record in records]


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that generates fifty tokens per second, with three places in the batch and three in the queue."""
    properties = (
        "option.rolling_batch=echo\noption.echo_tokens_per_second=50\noption.max_model_len=4096\n"
        "option.max_rolling_batch_size=3\njob_queue_size=3\n"
    )
    server = Server(tmp_path_factory.mktemp("slow") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_batch_larger_than_the_queue_is_answered_in_full(slow_server: Server) -> None:
    body = "\n".join(json.dumps({"inputs": f"record {number}"}) for number in range(8))
    answer = slow_server.invoke(data=body.encode(), headers={"Content-Type": "application/jsonlines"})
    assert [json.loads(line)["generated_text"] for line in answer.text.splitlines()] == [
        f"record {n}" for n in range(8)
    ]


def test_list_of_prompts_returns_a_list(echo_server: Server) -> None:
    answer = echo_server.invoke({"inputs": ["one", "two", "three"]})
    assert answer.json() == [{"generated_text": "one"}, {"generated_text": "two"}, {"generated_text": "three"}]


def test_unicode_is_not_escaped(echo_server: Server) -> None:
    prompt = 'a "quoted"\n日本語 🙂 \\ end'
    answer = echo_server.invoke({"inputs": prompt, "parameters": {"return_full_text": True, "max_new_tokens": 200}})
    assert generated(answer) == prompt * 2
    assert "日本語" in answer.content.decode()


# Streaming


def stream_lines(answer: requests.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    text = answer.content.decode()
    assert text.endswith("\n")
    if answer.headers["Content-Type"] == "text/event-stream":
        return json_events(text)
    return [json.loads(line) for line in text.splitlines()]


def test_stream_of_json_lines(echo_server: Server) -> None:
    answer = echo_server.invoke({"inputs": "día", "stream": True, "parameters": {"details": True}})
    assert answer.headers["Content-Type"] == "application/jsonlines"
    lines = stream_lines(answer)
    assert "".join(line["token"]["text"] for line in lines) == "día" == lines[-1]["generated_text"]
    assert lines[-1]["details"] == {"finish_reason": "eos_token", "generated_tokens": 5, "inputs": "día"}
    assert lines[-1]["token"]["special_token"] is True


@pytest.mark.parametrize("headers", [{"X-Amzn-SageMaker-Forwarded-Api": "InvokeEndpointWithResponseStream"}])
def test_sagemakers_streaming_api_streams_without_a_flag(echo_server: Server, headers: dict[str, str]) -> None:
    answer = echo_server.invoke({"inputs": "hello"}, headers=headers)
    assert answer.headers["Content-Type"] == "application/jsonlines"
    refused = echo_server.invoke({"inputs": "hello", "stream": False}, headers=headers)
    assert refused.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json;q=0.1, text/event-stream"])
def test_accept_header_selects_server_sent_events(echo_server: Server, accept: str) -> None:
    answer = echo_server.invoke({"inputs": "hello", "stream": True}, headers={"Accept": accept})
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert stream_lines(answer)[-1]["generated_text"] == "hello"


def test_tokens_arrive_as_soon_as_they_are_generated(echo_server: Server) -> None:
    """Two have been generated, and there will be no others."""
    with echo_server.invoke({"inputs": "ab HANG@3", "stream": True}, stream=True) as answer:
        lines = answer.iter_lines()
        assert [json.loads(next(lines))["token"]["text"] for _ in range(2)] == ["a", "b"]


def test_stop_sequences_end_the_stream(echo_server: Server) -> None:
    body = {"inputs": "one two three", "stream": True, "parameters": {"stop_sequences": ["o t"], "details": True}}
    lines = stream_lines(echo_server.invoke(body))
    assert "".join(line["token"]["text"] for line in lines) == "one tw" == lines[-1]["generated_text"]
    assert lines[-1]["details"]["finish_reason"] == "stop_sequence"


def test_n_sequences_with_seeds(echo_server: Server) -> None:
    answer = echo_server.invoke({"inputs": "hello", "parameters": {"n": 3, "do_sample": True, "seed": 1}})
    details = answer.json()["details"]
    assert [other["generated_text"] for other in details["best_of_sequences"]] == ["hello", "hello"]


# Headers and log


@pytest.mark.parametrize("header", ["X-Amzn-SageMaker-Inference-Id", "x-request-id"])
def test_request_id_is_echoed_and_logged(echo_server: Server, header: str) -> None:
    request_id = f"id-{uuid.uuid4()}"
    answer = echo_server.invoke({"inputs": "a secret prompt"}, headers={header: request_id})
    assert answer.headers["x-request-id"] == request_id
    assert answer.headers[header] == request_id
    entry = echo_server.log_entry(request_id)
    assert (entry["status"], entry["path"], entry["finish_reasons"]) == (200, "/invocations", ["eos_token"])
    assert (entry["prompt_tokens"], entry["generated_tokens"]) == (15, 16)
    assert 0 <= entry["queue_ms"] <= entry["first_token_ms"] <= entry["total_ms"]
    assert "a secret prompt" not in echo_server.log


def test_request_id_is_generated_if_none_is_given(echo_server: Server) -> None:
    first, second = (echo_server.invoke({"inputs": "a"}).headers["x-request-id"] for _ in range(2))
    assert uuid.UUID(first) != uuid.UUID(second)


def test_errors_are_logged_with_their_cause(echo_server: Server) -> None:
    request_id = f"id-{uuid.uuid4()}"
    echo_server.invoke({"inputs": ""}, headers={"x-request-id": request_id})
    entry = echo_server.log_entry(request_id)
    assert (entry["status"], says(entry["error"], "InvalidRequest: inputs: empty")) == (424, True)


def test_ping_is_not_logged(echo_server: Server) -> None:
    echo_server.ping()
    assert "/ping" not in echo_server.log


def test_ignored_parameters_are_named(echo_server: Server) -> None:
    body = {"inputs": "a", "parameters": {"frobnicate": 1, "length_penalty": 2.0, "top_k": 5}}
    answer = echo_server.invoke(body)
    assert answer.headers["x-lmi-ignored-parameters"] == "frobnicate, length_penalty"
    assert "x-lmi-ignored-parameters" not in echo_server.invoke({"inputs": "a"}).headers


def test_null_parameters_count_as_absent(echo_server: Server) -> None:
    names = ["seed", "temperature", "top_k", "stop_sequences", "max_new_tokens", "details", "do_sample", "n"]
    answer = echo_server.invoke({"inputs": "a", "parameters": dict.fromkeys(names)})
    assert generated(answer) == "a"


# Invalid input: each body with words that its error must contain, beginning with the first

BAD_BODIES: dict[str, tuple[object, list[str]]] = {
    "not JSON": (b"{bad", ["the body is not valid JSON"]),
    "empty": (b"", ["the body is not valid JSON"]),
    "two documents": (b'{"inputs": "a"} junk', ["the body is not valid JSON"]),
    "not UTF-8": (b'{"inputs": "\xff"}', ["the body is not valid JSON"]),
    "NaN": (b'{"inputs": "a", "parameters": {"temperature": NaN}}', ["the body is not valid JSON"]),
    "Infinity": (b'{"inputs": "a", "parameters": {"top_p": Infinity}}', ["the body is not valid JSON"]),
    "1e999": (
        b'{"inputs": "a", "parameters": {"temperature": 1e999}}',
        ["parameters.temperature: Number out of range"],
    ),
    "deep nesting": (b"[" * 20_000, ["the body is not valid JSON"]),
    "deep nesting, closed": (b'{"inputs": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", ["the body is not valid JSON"]),
    "array": ([1], ["the body must be a JSON object"]),
    "string": ("hello", ["the body must be a JSON object"]),
    "null": (b"null", ["the body must be a JSON object"]),
    "no inputs": ({}, ["inputs: is required"]),
    "inputs null": ({"inputs": None}, ["inputs: must be a string"]),
    "inputs number": ({"inputs": 3}, ["inputs: must be a string"]),
    "inputs empty": ({"inputs": ""}, ["inputs: must not be empty"]),
    "inputs empty list": ({"inputs": []}, ["inputs: must not be an empty list"]),
    "inputs list with null": ({"inputs": ["a", None]}, ["inputs[1]: must be a non-empty string"]),
    "inputs list streamed": ({"inputs": ["a", "b"], "stream": True}, ["inputs: a list of prompts cannot be streamed"]),
    "prompt too long": (
        {"inputs": "x" * 5000},
        ["inputs: must have at most 4095 tokens, got 5000; prompt and answer together may have 4096"],
    ),
    "second prompt too long": ({"inputs": ["a", "x" * 5000]}, ["inputs[1]: must have at most 4095 tokens, got 5000"]),
    "parameters null": ({"inputs": "a", "parameters": None}, ["parameters: must be an object"]),
    "parameters list": ({"inputs": "a", "parameters": []}, ["parameters: must be an object"]),
    "stream string": ({"inputs": "a", "stream": "false"}, ["stream: must be true or false"]),
}
BAD_PARAMETERS: dict[str, list[object]] = {
    "max_new_tokens": [0, -1, "3", 2.5, True, 2**70],
    "temperature": [-0.1, "hot", True, 1000],
    "top_p": [0, -1, 1.1, "x"],
    "top_k": [-2, "x", 1.5],
    "min_p": [-0.1, 1.1],
    "typical_p": [0, 1.5],
    "repetition_penalty": [0, -1],
    "presence_penalty": [-3, 3],
    "frequency_penalty": [-3, 3, "x"],
    "seed": [-1, "abc", 2**64, 1.5],
    "n": [0, -1, 1000, "2"],
    "best_of": [0, 1000],
    "stop_sequences": [[""], [1], 3],
    "stop_token_ids": [["a"], [-1], [100_000]],
    "logit_bias": [{"a": 1}, {"5": 1000}, {"100000": 1}, [1]],
    "min_tokens": [-1, 31],
    "top_n_tokens": [-1, 21],
    "truncate": [0, -1, "x"],
    "do_sample": ["false", 1],
    "details": ["yes"],
    "num_beams": [0, -1, 20, 1000, "2"],
}


def bad_bodies() -> list[Any]:
    cases = [pytest.param(body, words, id=name) for name, (body, words) in BAD_BODIES.items()]
    for name, values in BAD_PARAMETERS.items():
        for value in values:
            body = {"inputs": "a", "parameters": {name: value, "details": True} if name != "details" else {name: value}}
            cases.append(pytest.param(body, ["parameters", name], id=f"{name}={value!r}"))
    return cases


@pytest.mark.parametrize(("body", "words"), bad_bodies())
def test_invalid_input(echo_server: Server, body: object, words: list[str]) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = echo_server.invoke(data=data, headers={"Content-Type": "application/json"})
    assert answer.status_code == 424, answer.text
    error = answer.json()
    assert list(error) == ["error", "code"]
    assert error["code"] == 424
    assert error["error"].startswith(words[0])
    assert all(word in error["error"] for word in words)
    assert answer.headers["Content-Type"] == "application/json"
    assert len(error["error"]) < 400


def test_body_over_the_limit(echo_server: Server) -> None:
    body = b'{"inputs": "' + b"x" * 2_000_000 + b'"}'
    answer = echo_server.invoke(data=body)
    assert (answer.status_code, answer.json()["code"]) == (413, 413)
    assert says(answer.json()["error"], "larger max_request_size 1048576")


def test_chunked_body_over_the_limit(echo_server: Server) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000

    try:
        answer = echo_server.invoke(data=pieces())
    except requests.ConnectionError:
        return  # the server had answered and closed the connection before the client had sent everything
    assert answer.status_code == 413


def test_invalid_requests_do_not_affect_others(slow_server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        body = {"inputs": "undisturbed " * 10, "stream": True, "parameters": {"max_new_tokens": 120, "details": True}}
        others = [pool.submit(slow_server.invoke, body) for _ in range(3)]
        bad_answers = []
        while not all(other.done() for other in others):
            for case in bad_bodies()[::7]:
                data = case.values[0] if isinstance(case.values[0], bytes) else json.dumps(case.values[0])
                bad_answers.append(slow_server.invoke(data=data))
    assert {answer.status_code for answer in bad_answers} == {424}
    for other in others:
        assert stream_lines(other.result())[-1]["generated_text"] == "undisturbed " * 10


def http_connection(server: Server) -> Any:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60))


def test_header_with_a_line_break_is_rejected(echo_server: Server) -> None:
    with connect(echo_server, head("/invocations", "x-request-id: a\rSet-Cookie: b", "Content-Length: 0")) as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 400")
