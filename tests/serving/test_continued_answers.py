"""Answers that a deadline has cut, continued by the server itself, by another one, and by the tools."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from answer_parts import Shown, joined, shown
from facts import says
from lmi_command import lmi
from runtime_client import runtime_client
from serving import Server, StartServer

KEY = {"LMI_CONTINUATION_KEY": "only for tests: 32 characters and more"}
OPTIONS = "option.rolling_batch=echo\noption.dialect=mindie\noption.served_model_name=m\n"
DEADLINES = (
    f"{OPTIONS}option.echo_tokens_per_second=40\noption.response_deadline=1.5\noption.stream_deadline=1.5\n"
    "option.max_rolling_batch_size=64\n"
)
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TEXT = "Eine Antwort mit “Zeichen” und 😀, Wort für Wort. " * 2
CALL = '{"name": "weather", "parameters": {"city": "' + "Aachen " * 12 + '"}}'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
MESSAGES = [{"role": "user", "content": TEXT}]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lmi": ("/invocations", {"inputs": TEXT, "parameters": {"max_new_tokens": 500, "stop": ["Wort für Wort?"]}}),
    "lmi-seed": (
        "/invocations",
        {"inputs": TEXT, "parameters": {"max_new_tokens": 500, "do_sample": True, "seed": 3, "details": True}},
    ),
    "tgi": ("/generate", {"inputs": TEXT, "parameters": {"max_new_tokens": 500}}),
    "tgi-sampled": (
        "/generate",
        {"inputs": TEXT, "parameters": {"max_new_tokens": 500, "do_sample": True, "details": True}},
    ),
    "mindie": ("/", {"inputs": TEXT, "parameters": {"max_new_tokens": 500, "return_full_text": True}}),
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": 500, "model": "m", "echo": True}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 500}),
    "chat-invoke": ("/invocations", {"messages": MESSAGES, "max_tokens": 500}),
    "tools": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": CALL}], "tools": TOOLS, "max_tokens": 500},
    ),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 500}),
    "anthropic": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 500}),
    "aleph-alpha": ("/complete", {"prompt": TEXT, "maximum_tokens": 500, "model": "m"}),
    "aleph-alpha-chat": ("/chat/completions", {"messages": MESSAGES, "maximum_tokens": 500, "model": "m"}),
}


@pytest.fixture(scope="module")
def cutting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("cutting") / "m", DEADLINES, "--local-runtime", environ=KEY)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another server with the same key, which cuts nothing."""
    server = Server(tmp_path_factory.mktemp("other") / "other", OPTIONS, environ=KEY)
    yield server.wait_ready()
    server.stop()


def ask(server: Server, name: str, *, stream: bool, **fields: Any) -> requests.Response:
    path, body = CASES[name]
    body = {**body, **fields}
    if stream:
        body["stream"] = True
        path = "/generate_stream" if path == "/generate" else path
    return answered(server, body, path)


def answered(server: Server, body: dict[str, Any], path: str = "/invocations") -> requests.Response:
    """Return the answer. On a busy machine, a deadline may pass before there is any text: then the request is repeated."""
    while (answer := server.invoke(body, path=path)).status_code in (504, 408):
        pass
    assert answer.status_code == 200, answer.text
    return answer


def parts(server: Server, body: dict[str, Any], path: str) -> list[Shown]:
    found, token = list[Shown](), None
    while not found or token is not None:
        found.append(shown(answered(server, {**body, "continuation": token}, path).content))
        token = found[-1].continuation
        assert len(found) < 400
    return found


def parts_of(server: Server, name: str, *, stream: bool) -> list[Shown]:
    path, body = CASES[name]
    if not stream:
        return parts(server, body, path)
    return parts(server, {**body, "stream": True}, "/generate_stream" if path == "/generate" else path)


@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
def test_continued_is_the_same_as_never_cut(cutting: Server, other: Server, stream: bool) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(CASES)) as pool:
        found = dict(zip(CASES, pool.map(lambda name: parts_of(cutting, name, stream=stream), CASES), strict=True))
    for name, answers in found.items():
        whole = shown(ask(other, name, stream=stream).content)
        assert whole.continuation is None
        assert len(answers) > 1, name
        assert joined(answers) == whole.content, name


@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
def test_another_server_goes_on(cutting: Server, other: Server, stream: bool) -> None:
    """It may be the same one after a restart: nothing is kept."""
    with concurrent.futures.ThreadPoolExecutor(len(CASES)) as pool:
        first = list(pool.map(lambda name: shown(ask(cutting, name, stream=stream).content), CASES))
    for name, part in zip(CASES, first, strict=True):
        assert part.continuation is not None, name
        rest = shown(ask(other, name, stream=not stream, continuation=part.continuation).content)
        whole = shown(ask(other, name, stream=stream).content)
        assert (part.text + rest.text, rest.continuation) == (whole.text, None), name


def test_the_custom_attribute_leaves_the_body_as_it_was(cutting: Server) -> None:
    body, text, cuts = json.dumps(CASES["lmi"][1]), "", 0
    attributes = "tenant=blue"  # the server does not answer with this one
    with closing(runtime_client(cutting.url)) as client:
        while attributes:
            answer = client.invoke_endpoint(
                EndpointName="m", ContentType="application/json", Body=body, CustomAttributes=attributes
            )
            text += json.load(answer["Body"])["generated_text"]
            attributes = answer.get("CustomAttributes", "")
            assert not attributes or attributes.startswith("x-lmi-truncated=response_deadline;x-lmi-continuation=")
            cuts += bool(attributes)
    assert (text, cuts > 0) == (TEXT, True)


def test_usage_is_that_of_each_part(cutting: Server, other: Server) -> None:
    first = ask(cutting, "chat", stream=False).json()
    assert first["choices"][0]["finish_reason"] == "length"
    rest = ask(other, "chat", stream=False, continuation=first["continuation"])
    whole = ask(other, "chat", stream=False).json()
    assert rest.json()["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    used = [answer["usage"] for answer in (first, rest.json(), whole)]
    assert {usage["prompt_tokens"] for usage in used} == {used[2]["prompt_tokens"]}
    assert used[0]["completion_tokens"] + used[1]["completion_tokens"] == used[2]["completion_tokens"]
    entry = other.log_entry(rest.headers["x-request-id"])
    assert entry["continued_tokens"] == used[0]["completion_tokens"]


def test_what_has_several_sequences_has_no_token(cutting: Server) -> None:
    answer = answered(cutting, {"inputs": TEXT, "parameters": {"max_new_tokens": 500, "details": True, "n": 2}})
    assert answer.headers["x-lmi-truncated"] == "response_deadline"
    assert "continuation" not in answer.text + answer.headers[ATTRIBUTES]


def test_refusals(cutting: Server, other: Server) -> None:
    token = shown(ask(cutting, "lmi", stream=False).content).continuation
    path, body = CASES["lmi"]
    refused = {
        "invalid_continuation": {**body, "continuation": "x"},
        "invalid_body": {**body, "continuation": 5},
        "continuation_of_other_prompt": {**body, "inputs": "another", "continuation": token},
        "continuation_of_other_sampling": {**body, "parameters": {"max_new_tokens": 501}, "continuation": token},
    }
    for code, sent in refused.items():
        answer = other.invoke(sent, path=path, headers={"x-request-id": f"refused-{code}"})
        assert answer.status_code == 424, answer.text
        assert other.log_entry(f"refused-{code}")["error_code"] == code
    for more in ({"n": 2}, {"num_beams": 2}):
        parameters = {**body["parameters"], **more}
        answer = other.invoke({**body, "parameters": parameters, "continuation": token}, path=path)
        assert answer.status_code == 424, answer.text


def test_nothing_is_continued_in_a_batch(other: Server) -> None:
    path, body = CASES["lmi"]
    records = {json.dumps({**body, "continuation": "x"}): "", json.dumps(body): "x-lmi-continuation=x"}
    for record, attributes in records.items():
        headers = {"Content-Type": "application/jsonlines", ATTRIBUTES: attributes}
        answer = requests.post(other.url + path, f"{record}\n" * 2, headers=headers, timeout=60)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [line["code"] for line in lines] == [424] * 2, answer.text
        assert all("continuation" in line["error"] for line in lines)


def test_explain(cutting: Server) -> None:
    path, body = CASES["lmi"]
    first = shown(ask(cutting, "lmi", stream=False).content)
    for fields, cause in (
        ({}, ""),
        ({"continuation": "x"}, "continuation valid"),
        ({"inputs": "other"}, "continuation prompt"),
        ({"parameters": {"max_new_tokens": 499}}, "continuation sampling"),
    ):
        asked = {"route": path, "body": {**body, "continuation": first.continuation, **fields}}
        explained = cutting.invoke(asked, path="/explain")
        assert explained.status_code == (424 if cause else 200), explained.text
        if cause:
            assert says(explained.text, cause)
        else:
            assert explained.json()["continued_tokens"] >= len(first.text.encode())


def test_the_tools_continue_by_themselves(cutting: Server, other: Server, tmp_path: Path) -> None:
    for name in ("lmi", "chat", "anthropic", "aleph-alpha"):
        path, body = CASES[name]
        for fields in ({}, {"stream": True}):
            data = json.dumps({**body, **fields})
            result = lmi("invoke", "--url", cutting.url + path, data)
            assert (result.exit_code, result.stdout) == (0, lmi("invoke", "--url", other.url + path, data).stdout)
    once = lmi("invoke", "--url", cutting.url, json.dumps(CASES["lmi"][1]), "--raw").stdout
    assert "continuation" in json.loads(once)


OWN_BODIES = """
from djl_python import Input
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.request_io import RequestInput, TextInput

@input_formatter
def read(input_item: Input, **kwargs) -> RequestInput:
    request = TextInput()
    request.input_text = decode(input_item, "application/json")["question"]
    request.parameters = {"max_new_tokens": 500}
    return request
"""


def test_an_input_formatter_need_not_know_the_token(tmp_path: Path, start_server: StartServer) -> None:
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0" / "model.py").write_text(OWN_BODIES)
    server = start_server(DEADLINES.replace("option.dialect=mindie\n", ""), environ=KEY)
    found = parts(server, {"question": TEXT}, "/invocations")
    assert len(found) > 1
    assert "".join(part.text for part in found) == TEXT
    # A field of the model's own that is no text is left to its formatter.
    assert shown(answered(server, {"question": TEXT, "continuation": 5}).content).text


@pytest.mark.long
def test_a_long_answer_passes_a_short_time_limit(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an answer of 20 minutes passes SageMaker's limit of 60 seconds: 12 seconds in parts of one."""
    slow = f"{OPTIONS}option.echo_tokens_per_second=20\noption.response_deadline=1\noption.stream_deadline=1\n"
    server = start_server(f"{slow}option.predict_timeout=3\n", "--local-runtime")
    for name, value in {
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": server.url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }.items():
        monkeypatch.setenv(name, value)
    text = "".join(f"word {number} " for number in range(30))
    data = json.dumps({"inputs": text, "parameters": {"max_new_tokens": 1000}})
    result = lmi("invoke", "--endpoint-name", "m", data)
    assert (result.exit_code, result.stdout) == (0, f"{text}\n")
    assert server.log.count("continued_tokens") > 5


@pytest.mark.parametrize("step", [0, 1], ids=["one for all parts", "another for each"])
def test_parts_of_requests_with_an_identity(cutting: Server, step: int) -> None:
    """The seed that the server chooses depends on it. A retry of a part is one of that part."""
    body: dict[str, Any] = {"inputs": TEXT, "parameters": {"max_new_tokens": 500, "do_sample": True}}
    text = ""
    for identity in itertools.count(0, step):
        headers = {"Idempotency-Key": f"{step} {identity}"}
        while (answer := cutting.invoke(body, path="/generate", headers=headers)).status_code == 504:
            pass
        document = answer.json()
        text += document["generated_text"]
        if "continuation" not in document:
            break
        body["continuation"] = document["continuation"]
    assert text == TEXT


def test_a_token_is_its_clients_own(tmp_path: Path, start_server: StartServer) -> None:
    (tmp_path / "keys").write_text("team-a first-key\nteam-b second-key\n")
    server = start_server(DEADLINES, "--api-key-file", str(tmp_path / "keys"), environ=KEY)
    path, body = CASES["lmi"]
    statuses = []
    for key in ("first-key", "second-key", "first-key"):
        while (answer := server.invoke(body, path=path, headers={"x-api-key": key})).status_code == 504:
            pass
        statuses.append(answer.status_code)
        body = {**body, "continuation": body.get("continuation") or shown(answer.content).continuation}
    assert statuses == [200, 424, 200]


@pytest.mark.long
def test_an_engine_continues_at_any_token(tiny_llama: Path, start_server: StartServer) -> None:
    """Greedy answers, cut wherever the deadline happens to pass. With seeds, rounding may decide: engines' own tests compare."""
    model = f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.dtype=fp32\n"
    properties = f"{model}option.served_model_name=m\noption.max_rolling_batch_size=8\n"
    deadlines = "option.response_deadline=0.4\noption.stream_deadline=0.4\n"
    cutting = start_server(properties + deadlines, environ=KEY)
    whole = start_server(properties, environ=KEY)
    bodies = [
        {"inputs": f"Text {number}", "stream": number % 2 == 0, "parameters": {"max_new_tokens": 300, **parameters}}
        for number in range(2)
        for parameters in (
            {"ignore_eos_token": True},
            {"frequency_penalty": 0.5, "ignore_eos_token": True},
            {"repetition_penalty": 1.2, "stop": ["zz", "e e"], "ignore_eos_token": True},
        )
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda body: parts(cutting, body, "/invocations"), bodies))
        expected = [shown(answer.content) for answer in pool.map(lambda body: answered(whole, body), bodies)]
    for body, answers, answer in zip(bodies, found, expected, strict=True):
        assert joined(answers) == answer.content, body
    assert sum(map(len, found)) > 2 * len(bodies)
