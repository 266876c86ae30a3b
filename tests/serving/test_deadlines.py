"""`option.response_deadline` and `option.stream_deadline`: an answer ends with the text that it has."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from facts import says
from serving import Server, lmi_check

from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import BeamSearchParams
from lmi_handlers.serving.beam_search import BeamSearch

OPTIONS = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.echo_tokens_per_second=20\noption.echo_load_seconds=0.1\n"
    "option.response_deadline=1.2\noption.stream_deadline=2.4\noption.predict_timeout=20\noption.dialect=mindie\noption.max_rolling_batch_size=40\n"
)
MESSAGES = [{"role": "user", "content": "word " * 60}]
CALL = '{"name": "weather", "parameters": {"city": "' + "Aachen " * 30 + '"}}'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
LMI = {"inputs": "abc", "parameters": {"max_new_tokens": 500, "details": True, "ignore_eos_token": True}}
TGI = {"inputs": "abc" * 100, "parameters": {"max_new_tokens": 500, "details": True}}
OPENAI = {"prompt": "abc" * 100, "max_tokens": 500, "model": "m"}
ALEPH_ALPHA = {"prompt": "abc" * 100, "maximum_tokens": 500, "model": "m"}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lmi": ("/invocations", LMI),
    "lmi-n": ("/invocations", {**LMI, "parameters": {**LMI["parameters"], "n": 2}}),  # type: ignore[dict-item]
    "tgi": ("/generate", TGI),
    "openai-completions": ("/v1/completions", {**OPENAI, "n": 2}),
    "openai-chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 500, "n": 2}),
    "openai-tools": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": CALL}], "tools": TOOLS, "max_tokens": 500},
    ),
    "openai-responses": ("/v1/responses", {"input": "word " * 60, "max_output_tokens": 500}),
    "anthropic": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 500}),
    "aleph-alpha": ("/complete", ALEPH_ALPHA),
    "mindie": ("/", TGI),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("deadlines") / "m", OPTIONS)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def answers(server: Server) -> dict[tuple[str, bool], requests.Response]:
    """The answers to all cases, streamed and not. They are sent at once, because each takes as long as its deadline."""

    def ask(case: tuple[str, bool]) -> requests.Response:
        (path, body), stream = CASES[case[0]], case[1]
        if not stream:
            return server.invoke(body, path=path)
        return server.invoke({**body, "stream": True}, path="/generate_stream" if path == "/generate" else path)

    cases = [(name, stream) for name in CASES for stream in (False, True)]
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        return dict(zip(cases, pool.map(ask, cases), strict=True))


def found(value: object, key: str) -> list[Any]:
    """All values of a key, however deep."""
    if isinstance(value, list):
        return [item for part in value for item in found(part, key)]
    if isinstance(value, dict):
        return ([value[key]] if key in value else []) + [item for part in value.values() for item in found(part, key)]
    return []


@pytest.mark.parametrize("name", CASES)
def test_document_ends_with_its_text(
    name: str, answers: dict[tuple[str, bool], requests.Response], server: Server
) -> None:
    answer = answers[name, False]
    assert (answer.status_code, answer.headers["x-lmi-truncated"]) == (200, "response_deadline"), answer.text
    document = answer.json()
    texts = [key for key in ("generated_text", "text", "content", "completion", "arguments") if found(document, key)]
    assert any(text for key in texts for text in found(document, key)), document
    keys = ("finish_reason", "reason", "stop_reason")
    reasons = {str(reason) for key in keys for reason in found(document, key)}
    assert reasons in ({"length"}, {"maximum_tokens"}, {"max_output_tokens"}, {"max_tokens"})
    entry = server.log_entry(answer.headers["x-request-id"])
    assert entry["truncated"] == "response_deadline"
    assert set(entry["finish_reasons"]) == {"length"}


@pytest.mark.parametrize("name", CASES)
def test_stream_ends_with_its_text(
    name: str, answers: dict[tuple[str, bool], requests.Response], server: Server
) -> None:
    answer = answers[name, True]
    assert answer.status_code == 200
    assert "x-lmi-truncated" not in answer.headers  # it was sent before
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line and not line.startswith("event:")]
    records = [json.loads(line) for line in lines if line != "[DONE]"]
    assert not any(found(record, "error") for record in records if name != "openai-responses"), records
    cut = found(records, "truncated")
    assert len(records) > 26, records  # more than in `response_deadline`
    if name == "openai-responses":
        assert records[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    else:
        assert set(cut) == {"stream_deadline"}
        assert len(cut) == CASES[name][1].get("n", 1)
    assert server.log_entry(answer.headers["x-request-id"])["truncated"] == "stream_deadline"


def test_beam_search_ends_with_the_beams_that_it_has(server: Server) -> None:
    """Its steps are short here, then long."""
    for prompt in ("abc", "b WORK@4"):
        body = {"inputs": prompt, "parameters": {"num_beams": 2, "max_new_tokens": 5000, "details": True}}
        answer = server.invoke(body)
        assert (answer.status_code, answer.headers.get("x-lmi-truncated")) == (200, "response_deadline"), answer.text
        details = answer.json()["details"]
        assert details["finish_reason"] == "length"
        assert 0 < details["generated_tokens"] < 5000
        assert [other["finish_reason"] for other in details["best_of_sequences"]] == ["length"]


def test_answer_without_any_text_is_an_error(server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda stream: server.invoke({"inputs": "x HANG@1", "stream": stream}), (False, True)))
    for answer, option in zip(answers, ("response_deadline", "stream_deadline"), strict=True):
        assert answer.status_code == 504
        assert says(answer.json()["error"], f"nothing option.{option} passed")
    assert server.invoke({"inputs": "a", "parameters": {"max_new_tokens": 1}}).status_code == 200


def test_sequence_that_has_not_begun_ends_without_text(server: Server) -> None:
    """LMI's answer is the best of those that have text."""
    body = {"inputs": "abc", "parameters": {"n": 42, "max_new_tokens": 500, "details": True, "ignore_eos_token": True}}
    document = server.invoke(body).json()
    assert document["generated_text"]
    texts = sorted(bool(other["generated_text"]) for other in document["details"]["best_of_sequences"])
    assert texts == [False] * 2 + [True] * 39


def test_stream_of_lmi_without_details_says_that_it_was_cut(server: Server) -> None:
    body = {"inputs": "abc", "parameters": {"max_new_tokens": 500, "ignore_eos_token": True}, "stream": True}
    last = json.loads(server.invoke(body).text.splitlines()[-1])
    assert last["details"].pop("continuation")
    assert last["details"] == {"finish_reason": "length", "truncated": "stream_deadline"}


def test_answer_in_time_is_whole(server: Server) -> None:
    answer = server.invoke({"inputs": "abc", "parameters": {"max_new_tokens": 3, "details": True}})
    assert answer.json()["generated_text"] == "abc"
    assert "x-lmi-truncated" not in answer.headers


def test_records_of_a_json_lines_body_are_whole(server: Server) -> None:
    """Nothing in a line could say that its text was cut."""
    record = json.dumps({"inputs": "abcdefg" * 8, "parameters": {"max_new_tokens": 56}}) + "\n"

    def ask(number: int) -> requests.Response:
        return requests.post(
            f"{server.url}/invocations", record * number, headers={"Content-Type": "application/jsonlines"}, timeout=60
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number, answer in enumerate(pool.map(ask, (1, 2)), 1):
            assert "x-lmi-truncated" not in answer.headers
            texts = [json.loads(line) for line in answer.text.splitlines()]
            assert texts == [{"generated_text": "abcdefg" * 8}] * number


def test_deadline_must_be_before_predict_timeout(model_dir: Path) -> None:
    (model_dir / "serving.properties").write_text(
        "option.rolling_batch=echo\noption.stream_deadline=480\noption.response_deadline=55.5\n"
    )
    result = lmi_check(model_dir)
    assert result.returncode == 1
    assert says(result.stderr + result.stdout, "option.stream_deadline=480.0 option.predict_timeout=240")
    assert "response_deadline=55.5 must" not in result.stderr + result.stdout


def test_cut_search_keeps_the_best_beams() -> None:
    search = BeamSearch(BeamSearchParams(num_beams=2), max_tokens=9)
    search.advance([[(1, -0.1), (2, -2.0), (3, -3.0)]])
    search.cut()
    assert not search.running
    assert [(beam.token_ids, beam.finish_reason) for beam in search.finished] == [
        ((1,), FinishReason.LENGTH),
        ((2,), FinishReason.LENGTH),
    ]
