"""llama.cpp's `/infill`: how bodies are parsed, what is written, and a server with Qwen 2.5 Coder's tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from capabilities import facts
from code_models import write_code_model
from facts import raises, says
from formatting import written
from prompts import rendered
from server_sent_events import event_data
from serving import Server

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.llama_cpp.dialect import InfillDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import (
    ContextLengthExceeded,
    EngineDead,
    EngineNotReady,
    InvalidBody,
    InvalidRequest,
    LMIError,
    QueueFull,
    UnsupportedFeature,
)
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.text.infill import FORMATS

BUDGET = Budget.of(ServingProperties())
GAP = {"input_prefix": "def a(b):\n", "input_suffix": "\nreturn"}
HEAD = "<|repo_name|>myproject\n{}<|file_sep|>filename\n"
FILLED = "<|fim_prefix|>def a(b):\n<|fim_suffix|>\nreturn<|fim_middle|>"
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "stop_token_ids": (7,)}


def dialect(**fields: Any) -> InfillDialect:
    coder = msgspec.structs.replace(facts("coder", **fields), infill=FORMATS[0], infill_ends=(7,))
    return InfillDialect(lambda: coder, budget=BUDGET)


def parse(given: dict[str, Any], *, stream: bool = False, **fields: Any) -> Parsed:
    payload = Payload(data=json.dumps(GAP | given).encode(), request_id="r", stream=stream)
    return dialect(adapters=("french",), **fields).parse(payload)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"n_predict": -1, "seed": -1, "temperature": None, "grammar": "", "mirostat": 0}, {}),
        ({"n_predict": 0}, {"max_tokens": 1}),
        ({"n_predict": 5, "n_cmpl": 2, "seed": 7}, {"max_tokens": 5, "n": 2, "seed": 7}),
        ({"temperature": -1, "top_k": -1}, {"temperature": 0.0, "top_k": 0}),
        ({"top_p": 0}, {"top_p": 1.0, "top_k": 1}),
        ({"repeat_penalty": 1.5, "n_probs": 3}, {"repetition_penalty": 1.5, "logprobs": 3}),
        ({"n_probs": -1}, {}),
        ({"stop": ["", "x"]}, {"stop": ("x",)}),
        ({"ignore_eos": True}, {"ignore_eos": True, "stop_token_ids": ()}),
        ({"logit_bias": [[5, 1.5], [6, False]]}, {"logit_bias": {5: 1.5, 6: -100.0}}),
        ({"logit_bias": {"5": -2}}, {"logit_bias": {5: -2.0}}),
        ({"grammar": "root ::= [a]"}, {"structured_outputs": StructuredOutputs(grammar="root ::= [a]")}),
        ({"json_schema": {"const": 1}}, {"structured_outputs": StructuredOutputs(json='{"const":1}')}),
    ],
)
def test_parameters(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse(given).request.sampling_params == SamplingParams(**DEFAULTS | expected)


def test_an_engine_error_names_the_field_that_constrains_the_answer() -> None:
    assert parse({"grammar": "root ::= [a]"}).alias("structured_outputs") == "grammar"
    assert parse({"grammar": "", "json_schema": {}}).alias("structured_outputs") == "json_schema"


def content(parsed: Parsed) -> object:
    return parsed.request.prompts[0].content


def test_prompts() -> None:
    assert content(parse({})) == HEAD.format("") + FILLED
    extra = [{"filename": "a.py", "text": "hello"}, {"text": "t"}]
    others = "<|file_sep|>a.py\nhello<|file_sep|>tmp\nt"
    typed = parse({"input_extra": extra, "prompt": "xy", "model": "french"})
    assert content(typed) == HEAD.format(others) + FILLED.replace("\n<|fim_s", "\nxy<|fim_s")
    assert (typed.request.prompts[0].adapter, parse({}).request.prompts[0].adapter) == ("french", None)
    assert parse({}, stream=True).request.stream
    assert not parse({"stream": False}, stream=True).request.stream
    assert parse({"samplers": ["top_k"], "cache_prompt": True}).request.ignored_parameters == (
        "samplers",
        "cache_prompt",
    )


def test_what_does_not_fit_of_other_files_is_cut() -> None:
    """The gap and the answer have room, if a token for each byte has."""
    extra = [{"text": "x" * 10_000}]
    assert parse({"input_extra": extra}).request.truncate == 4096 - 256
    assert parse({"input_extra": extra, "n_predict": 1000}).request.truncate == 4096 - 1000
    assert parse({"input_extra": extra, "n_predict": 10**6}).request.truncate == 4096 // 2
    assert parse({"input_extra": extra, "input_prefix": "x" * 4000}).request.truncate is None
    assert parse({}).request.truncate is None


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"input_prefix": None}, InvalidBody, "input_prefix: str null"),
        ({"input_suffix": 3}, InvalidBody, "input_suffix: str int"),
        ({"input_prefix": [1, 2]}, InvalidBody, "input_prefix: str array"),
        ({"input_extra": {"text": "a"}}, InvalidBody, "input_extra: array object"),
        ({"input_extra": [{"filename": "a"}]}, InvalidBody, "input_extra[0]: text"),
        ({"prompt": 3}, InvalidBody, "prompt: str int"),
        ({"n_predict": -2}, InvalidRequest, "n_predict: -1 -2"),
        ({"n_cmpl": 0}, InvalidRequest, "n_cmpl: 1 0"),
        ({"n_probs": 1000}, InvalidRequest, "n_probs: 128 1000"),
        ({"logit_bias": [[5, True]]}, InvalidRequest, "logit_bias: false"),
        ({"logit_bias": [["ab", 1]]}, InvalidBody, "logit_bias[0][0]: int str"),
        ({"grammar": "x", "json_schema": {}}, InvalidRequest, "grammar: json_schema"),
        ({"mirostat": 2}, UnsupportedFeature, "mirostat: 0"),
        ({"post_sampling_probs": True}, UnsupportedFeature, "post_sampling_probs: false"),
        ({"input_extra": [{"text": ""}] * 10_000}, InvalidRequest, "input_extra: 10000 option.max_messages"),
        (
            {"input_extra": [{"text": "a" * 10**6}], "n_cmpl": 20},
            InvalidRequest,
            "input_prefix: 20 option.max_text_bytes",
        ),
        ({"response_fields": ["a"] * 100_000}, InvalidRequest, "response_fields: 100000 option.max_strings"),
        ({"response_fields": ["a/" * 10**6]}, InvalidRequest, "response_fields: option.max_string_characters"),
        ({"stop": ["a"] * 100_000}, InvalidRequest, "stop: 100000 option.max_strings"),
        ({"json_schema": {"const": "a" * 10**6}}, InvalidRequest, "json_schema: option.max_schema_bytes"),
    ],
)
def test_bad_bodies(given: dict[str, Any], kind: type[LMIError], said: str) -> None:
    with raises(kind, said):
        parse(given)


def test_a_model_that_cannot_fill_in_the_middle() -> None:
    plain = InfillDialect(facts, budget=BUDGET)
    with raises(UnsupportedFeature, "input_prefix: tokenizer"):
        plain.parse(Payload(data=json.dumps(GAP).encode(), request_id="r"))


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("no", field="seed"), 400, "invalid_request_error"),
        (UnsupportedFeature("no", field="seed"), 400, "not_supported_error"),
        (ContextLengthExceeded("no"), 400, "exceed_context_size_error"),
        (QueueFull("no"), 429, "unavailable_error"),
        (EngineNotReady("no"), 503, "unavailable_error"),
        (EngineDead("no"), 500, "server_error"),
    ],
)
def test_errors(error: LMIError, status: int, kind: str) -> None:
    reply = dialect().error(error)
    assert (reply.status, json.loads(reply.body)) == (
        status,
        {"error": {"code": status, "message": str(error), "type": kind}},
    )


def token(number: int, text: str) -> Token:
    return Token(number, text, -0.5, top=(Token(number, text, -0.5, data=text.encode()),), data=text.encode())


DELTAS = (
    TextDelta(tokens=(token(67, "a"), token(12, "\n")), text="a\n"),
    TextDelta(tokens=(token(68, "b"),), text="b", finish_reason=FinishReason.LENGTH),
)


def answered(given: dict[str, Any], *deltas: TextDelta) -> str:
    parsed = parse(given)
    return written(parsed.formatter(parsed.request, rendered(22, FILLED)), *deltas)


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    assert all(value >= 0 for value in document.pop("timings").values())
    return document


LAST = {
    "index": 0,
    "content": "a\nb",
    "tokens": [],
    "id_slot": -1,
    "stop": True,
    "model": "coder",
    "tokens_predicted": 3,
    "tokens_evaluated": 22,
    "generation_settings": {
        "seed": 4294967295,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [],
        "max_tokens": 3,
        "n_predict": 3,
        "ignore_eos": False,
        "stream": False,
        "n_probs": 0,
    },
    "prompt": FILLED,
    "has_new_line": True,
    "truncated": False,
    "stop_type": "limit",
    "stopping_word": "",
    "tokens_cached": 0,
}


def test_a_document() -> None:
    document = timeless(json.loads(answered({"n_predict": 3}, *DELTAS)))
    assert (document, [*document]) == (LAST, [*LAST])
    detailed = json.loads(answered({"n_probs": 1, "return_tokens": True}, *DELTAS))
    first = {"id": 67, "token": "a", "bytes": [97], "logprob": -0.5}
    assert detailed["completion_probabilities"][0] == first | {"top_logprobs": [first]}
    assert (len(detailed["completion_probabilities"]), detailed["tokens"]) == (3, [67, 12, 68])


def test_a_stream() -> None:
    first, second, last = map(json.loads, event_data(answered({"n_predict": 3, "stream": True, "n_probs": 1}, *DELTAS)))
    [*probabilities] = first.pop("completion_probabilities")
    assert [entry["id"] for entry in probabilities] == [67, 12]
    shown = {"stop": False, "id_slot": -1, "tokens_predicted": 2, "tokens_evaluated": 22}
    assert first == {"index": 0, "content": "a\n", "tokens": [67, 12], **shown}
    assert (second["content"], second["tokens_predicted"]) == ("b", 3)
    settings = LAST["generation_settings"] | {"stream": True, "n_probs": 1}  # type: ignore[operator]  # a dict
    assert timeless(last) == LAST | {"content": "", "generation_settings": settings}


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ({"finish_reason": FinishReason.EOS_TOKEN}, ("eos", "")),
        ({"finish_reason": FinishReason.STOP_SEQUENCE}, ("eos", "")),
        ({"finish_reason": FinishReason.STOP_SEQUENCE, "stop_string": "x"}, ("word", "x")),
        ({"finish_reason": FinishReason.ABORT}, ("none", "")),
    ],
)
def test_ends(ended: dict[str, Any], expected: tuple[str, str]) -> None:
    document = json.loads(answered({}, TextDelta(text="a", **ended)))
    assert (document["stop_type"], document["stopping_word"]) == expected


def test_chosen_fields() -> None:
    fields = ["content", "timings/prompt_n", "nope", "content/a", "generation_settings/seed", ""]
    chosen = {"content": "a\nb", "timings/prompt_n": 22, "generation_settings/seed": 4294967295}
    assert json.loads(answered({"response_fields": fields}, *DELTAS)) == chosen
    *_, last = event_data(answered({"response_fields": fields, "stream": True}, *DELTAS))
    assert json.loads(last) == chosen | {"content": ""}


def test_several_answers_are_an_array() -> None:
    other = msgspec.structs.replace(DELTAS[1], index=1)
    documents = json.loads(answered({"n_cmpl": 2}, *DELTAS, other))
    assert [(document["index"], document["content"]) for document in documents] == [(0, "a\nb"), (1, "b")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("coder") / "m"
    directory.mkdir()
    write_code_model(directory, "Qwen 2.5 Coder")
    properties = f"option.rolling_batch=echo\noption.model_id={directory}\noption.max_model_len=512\n"
    server = Server(directory, properties)
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("path", ["/infill", "/invocations"])
def test_a_server_answers_on_both_routes(server: Server, path: str) -> None:
    asked = GAP | {"prompt": "xy", "n_predict": 8, "ignore_eos": True}  # the echo begins with a token that ends answers
    answer = server.invoke(asked | {"samplers": []}, path=path)
    document = answer.json()
    assert (answer.status_code, document["stop_type"], document["tokens_predicted"]) == (200, "limit", 8)
    assert document["prompt"] == HEAD.format("") + FILLED.replace("\n<|fim_s", "\nxy<|fim_s")
    assert answer.headers["x-lmi-ignored-parameters"] == "samplers"
    streamed = server.invoke(asked | {"stream": True}, path=path)
    events = [json.loads(data) for data in event_data(streamed.text)]
    assert "".join(event["content"] for event in events) == document["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    ended = server.invoke(GAP | {"n_predict": 8}, path=path).json()
    assert (ended["stop_type"], ended["tokens_predicted"], ended["content"]) == ("eos", 1, "")


def test_a_server_keeps_the_gap_and_says_what_is_too_long(server: Server) -> None:
    long = server.invoke(GAP | {"input_extra": [{"text": "x" * 5000}], "n_predict": 8}, path="/infill").json()
    assert long["tokens_evaluated"] == 512 - 8
    refused = server.invoke(GAP | {"input_prefix": "x" * 5000}, path="/infill")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert says(error["message"], "input_prefix: 512")
    wrong = server.invoke(GAP, path="/infill", headers={"Content-Type": "image/png"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (415, 415)
    absent = server.invoke({}, path="/infill/more")
    assert (absent.status_code, absent.json()["error"]["type"]) == (404, "not_found_error")
