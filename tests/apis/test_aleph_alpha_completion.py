"""Aleph Alpha's text completions: over HTTP on the echo backend (one token per byte), how fields are handled, formatters."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import requests
from capabilities import facts
from hypothesis import given
from hypothesis import strategies as st
from prompts import rendered
from server_sent_events import json_events
from serving import Server

from formatters.aleph_alpha.completion import CompletionJsonFormatter, CompletionOptions, CompletionSseFormatter
from lmi_handlers.apis.aleph_alpha.completion import NEUTRAL, AlephAlphaCompletionDialect
from lmi_handlers.apis.base import Payload
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest, QueueFull
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.serving.parsed import Parsed

BUDGET = Budget.of(ServingProperties())


def post(server: Server, **body: Any) -> requests.Response:
    answer = server.invoke({"model": "m", "prompt": "ab", **body}, path="/complete")
    answer.encoding = "utf-8"
    return answer


def parse(**body: Any) -> Parsed:
    payload = Payload(data=json.dumps({"model": "m", "prompt": "ab", **body}).encode(), request_id="r")
    return AlephAlphaCompletionDialect(lambda: facts("served", adapters=("french",)), budget=BUDGET).parse(payload)


def prompt_of(parsed: Parsed) -> Prompt:
    [prompt] = parsed.request.prompts
    return prompt


# Answers

WHOLE = '{"completions":[%s],"model_version":"m","num_tokens_prompt_total":%d,"num_tokens_generated":%d}'


@pytest.mark.parametrize(
    ("asked", "completions", "prompt_tokens", "generated"),
    [
        ({}, '{"index":0,"completion":"ab","finish_reason":"end_of_text"}', 2, 3),
        ({"maximum_tokens": 1}, '{"index":0,"completion":"a","finish_reason":"maximum_tokens"}', 2, 1),
        ({"stop_sequences": ["b"]}, '{"index":0,"completion":"a","finish_reason":"stop_sequence_reached"}', 2, 2),
        (
            {"raw_completion": True},
            '{"index":0,"completion":"ab","raw_completion":"ab<|endoftext|>","finish_reason":"end_of_text"}',
            2,
            3,
        ),
        (
            {"log_probs": 0, "maximum_tokens": 2},
            '{"index":0,"log_probs":[{"a":-0.5},{"b":-0.5}],"completion":"ab","raw_completion":"ab",'
            '"finish_reason":"maximum_tokens"}',
            2,
            2,
        ),
        (
            {"log_probs": 2, "tokens": True},
            '{"index":0,"log_probs":[{"a":-0.5,"b":-1.5},{"b":-0.5,"c":-1.5},{"<|endoftext|>":-0.5,"\\u0000":-1.5}],'
            '"completion":"ab","raw_completion":"ab<|endoftext|>","completion_tokens":["a","b","<|endoftext|>"],'
            '"finish_reason":"end_of_text"}',
            2,
            3,
        ),
        (
            {"prompt": "é", "log_probs": 1, "tokens": True, "maximum_tokens": 2},
            '{"index":0,"log_probs":[{"":-0.5},{"é":-0.5}],"completion":"é","raw_completion":"é",'
            '"completion_tokens":["","é"],"finish_reason":"maximum_tokens"}',
            2,
            2,
        ),
        (
            {"n": 2, "maximum_tokens": 1},
            '{"index":0,"completion":"a","finish_reason":"maximum_tokens"},'
            '{"index":1,"completion":"a","finish_reason":"maximum_tokens"}',
            4,
            2,
        ),
        (
            {"best_of": 3, "maximum_tokens": 1},
            '{"index":0,"completion":"a","finish_reason":"maximum_tokens"}',
            6,
            3,
        ),
        (
            {"echo": True, "maximum_tokens": 1},
            '{"index":0,"completion":"aba","finish_reason":"maximum_tokens"}',
            2,
            1,
        ),
        (
            {"echo": True, "tokens": True, "maximum_tokens": 1},
            '{"index":0,"completion":"aba","raw_completion":"aba","completion_tokens":["a","b","a"],'
            '"finish_reason":"maximum_tokens"}',
            2,
            1,
        ),
        (
            {"echo": True, "tokens": True, "log_probs": 0, "maximum_tokens": 0},
            '{"index":0,"log_probs":[{},{"b":-0.5}],"completion":"ab","raw_completion":"ab",'
            '"completion_tokens":["a","b"],"finish_reason":"maximum_tokens"}',
            2,
            0,
        ),
    ],
)
def test_document(
    echo_server: Server, asked: dict[str, Any], completions: str, prompt_tokens: int, generated: int
) -> None:
    answer = post(echo_server, **asked)
    assert answer.text == WHOLE.replace('"m"', json.dumps(echo_server.name)) % (completions, prompt_tokens, generated)
    assert answer.headers["content-type"] == "application/json"


def test_stream(echo_server: Server) -> None:
    answer = post(echo_server, stream=True, stop_sequences=["b"], tokens=True)
    assert "".join(event.get("completion", "") for event in json_events(answer.text)) == "a"
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"


def test_stream_of_one_token(echo_server: Server) -> None:
    answer = post(echo_server, stream=True, maximum_tokens=1, log_probs=0, tokens=True)
    assert answer.text == (
        'data: {"type":"stream_chunk","index":0,"log_probs":[{"a":-0.5}],"completion":"a","raw_completion":"a",'
        '"completion_tokens":["a"]}\n\n'
        f'data: {{"type":"stream_summary","index":0,"model_version":"{echo_server.name}",'
        '"finish_reason":"maximum_tokens"}\n\n'
        'data: {"type":"completion_summary","num_tokens_prompt_total":2,"num_tokens_generated":1}\n\n'
    )


def test_stream_of_only_the_prompt(echo_server: Server) -> None:
    answer = post(echo_server, stream=True, maximum_tokens=0, echo=True, log_probs=0)
    chunk, summary, end = json_events(answer.text)
    assert (chunk["completion"], chunk["log_probs"]) == ("ab", [{}, {"b": -0.5}])
    assert summary["finish_reason"] == "maximum_tokens"
    assert end == {"type": "completion_summary", "num_tokens_prompt_total": 2, "num_tokens_generated": 0}


def test_stream_that_fails(echo_server: Server) -> None:
    answer = post(echo_server, prompt="RAISE@2", stream=True)
    assert answer.text == (
        'data: {"type":"stream_chunk","index":0,"completion":"R"}\n\n'
        'data: {"error":"the echo backend failed at token 2, as the prompt asked","code":"INTERNAL"}\n\n'
    )
    assert post(echo_server, prompt="RAISE@1", stream=True).status_code == 500


@pytest.mark.parametrize(
    "prompt",
    [
        [{"type": "text", "data": "ab"}],
        [{"type": "text", "data": "a", "controls": []}, {"type": "text", "data": "b"}],
        [{"type": "token_ids", "data": [97], "controls": []}, {"type": "token_ids", "data": [98]}],
    ],
)
def test_prompts(echo_server: Server, prompt: list[dict[str, Any]]) -> None:
    assert post(echo_server, prompt=prompt).json() == post(echo_server, prompt="ab").json()


# Requests

OF_THE_CLIENT = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalties_include_prompt": False,
    "use_multiplicative_presence_penalty": False,
    "n": 1,
    "tokens": False,
    "disable_optimizations": False,
    "minimum_tokens": 0,
    "echo": False,
    "use_multiplicative_frequency_penalty": False,
    "sequence_penalty": 0.0,
    "sequence_penalty_min_length": 2,
    "use_multiplicative_sequence_penalty": False,
    "completion_bias_inclusion_first_token_only": False,
    "completion_bias_exclusion_first_token_only": False,
    "control_log_additive": True,
    "repetition_penalties_include_completion": True,
    "raw_completion": False,
}
"""The body that version 11.5.1 of the client sends if only the prompt is set."""


@pytest.mark.parametrize("body", [{}, OF_THE_CLIENT, dict.fromkeys([*OF_THE_CLIENT, *NEUTRAL, "log_probs"])])
def test_defaults(body: dict[str, Any]) -> None:
    parsed = parse(**body)
    assert parsed.request.sampling_params == SamplingParams(temperature=0)
    assert parsed.request.ignored_parameters == ()
    assert not parsed.request.stream


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"top_k": 5}, {"temperature": 1, "top_k": 5}),
        ({"top_p": 0.5}, {"temperature": 1, "top_p": 0.5}),
        ({"temperature": 0.5, "top_k": 5, "top_p": 0.5}, {"temperature": 0.5, "top_k": 5, "top_p": 0.5}),
        ({"maximum_tokens": 5, "minimum_tokens": 2}, {"max_tokens": 5, "min_tokens": 2}),
        ({"presence_penalty": 0.5, "frequency_penalty": -1}, {"presence_penalty": 0.5, "frequency_penalty": -1}),
        ({"n": 2}, {"n": 2}),
        ({"n": 2, "best_of": 3}, {"n": 3, "logprobs": 0}),
        ({"n": 2, "best_of": 2}, {"n": 2}),
        ({"n": 1, "best_of": 2, "log_probs": 4}, {"n": 2, "logprobs": 4}),
        ({"logit_bias": {"5": 1.5}}, {"logit_bias": {5: 1.5}}),
        ({"log_probs": 3}, {"logprobs": 3}),
        ({"log_probs": 3, "echo": True}, {"logprobs": 3, "prompt_logprobs": 3}),
        ({"tokens": True, "echo": True}, {"prompt_logprobs": 0}),
        ({"echo": True}, {}),
        ({"maximum_tokens": 0, "echo": True}, {"max_tokens": 1}),
        ({"stop_sequences": ["x", "y"]}, {"stop": ("x", "y")}),
        ({"completion_bias_exclusion": ["x"]}, {"bad_words": ("x",)}),
    ],
)
def test_supported_fields(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse(**asked).request.sampling_params == SamplingParams(**({"temperature": 0} | expected))


def test_models() -> None:
    assert prompt_of(parse(model="french")).adapter == "french"
    assert prompt_of(parse(model="luminous-base")).adapter is None


def test_ignored() -> None:
    assert parse(hosting="aleph-alpha", tags=["t"], seed=1).request.ignored_parameters == ("hosting", "tags", "seed")


REFUSED: dict[str, object] = {
    "sequence_penalty": 0.5,
    "repetition_penalties_include_prompt": True,
    "repetition_penalties_include_completion": False,
    "use_multiplicative_presence_penalty": True,
    "use_multiplicative_frequency_penalty": True,
    "penalty_bias": "x",
    "penalty_exceptions": ["x"],
    "completion_bias_inclusion": ["x"],
    "completion_bias_exclusion_first_token_only": True,
    "steering_concepts": ["x"],
}


def test_every_unsupported_field_is_tested() -> None:
    assert REFUSED.keys() == NEUTRAL.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_rejected(echo_server: Server, name: str) -> None:
    answer = post(echo_server, **{name: REFUSED[name]})
    assert (answer.status_code, answer.json()["code"]) == (400, "UNSUPPORTED_PARAMETER")
    assert answer.json()["error"].startswith(f"{name}: ")
    assert post(echo_server, **{name: NEUTRAL[name]}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"model": None}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"]}, "prompt[0]"),
        ({"prompt": [{"type": "text", "data": "a"}, {"type": "image", "data": "/9j/"}]}, "prompt[1].type"),
        ({"prompt": [{"type": "text", "data": "a"}, {"type": "token_ids", "data": [97]}]}, "prompt"),
        ({"prompt": [{"type": "token_ids", "data": [-1]}]}, "prompt"),
        (
            {"prompt": [{"type": "text", "data": "a", "controls": [{"start": 0, "length": 1, "factor": 2}]}]},
            "prompt[0].controls",
        ),
        (
            {"prompt": [{"type": "token_ids", "data": [97], "controls": [{"index": 0, "factor": 0.5}]}]},
            "prompt[0].controls",
        ),
        ({"prompt": "a" * 5000}, "prompt"),
        ({"maximum_tokens": 0}, "maximum_tokens"),
        ({"maximum_tokens": 2, "minimum_tokens": 3}, "minimum_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"n": 0}, "n"),
        ({"best_of": 1000}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"log_probs": 21}, "log_probs"),
        ({"log_probs": -1}, "log_probs"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"completion_bias_exclusion": ["x"]}, "completion_bias_exclusion"),  # rejected by the echo backend
    ],
)
def test_invalid(echo_server: Server, asked: dict[str, Any], field: str) -> None:
    answer = post(echo_server, **asked)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error", "code"}
    assert answer.json()["error"].startswith(f"{field}: ")


def test_errors() -> None:
    answer = AlephAlphaCompletionDialect(facts, budget=BUDGET).error(QueueFull("no"))
    assert (answer.status, answer.body) == (503, b'{"error":"no","code":"QUEUE_FULL"}')


@given(st.lists(st.text()))
def test_text_items_are_joined(texts: list[str]) -> None:
    items = [{"type": "text", "data": text} for text in texts]
    assert prompt_of(parse(prompt=items)).content == "".join(texts)


@given(st.lists(st.lists(st.integers(), min_size=1), min_size=1))
def test_token_ids_are_joined(lists: list[list[int]]) -> None:
    items = [{"type": "token_ids", "data": ids} for ids in lists]
    assert prompt_of(parse(prompt=items)).content == tuple(token_id for ids in lists for token_id in ids)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*OF_THE_CLIENT, *NEUTRAL, "prompt", "best_of", "log_probs"]), JSON_VALUES))
def test_any_body_is_accepted_or_rejected(body: dict[str, Any]) -> None:
    field = refused_field(body)
    assert field is None or re.split(r"[.\[]", field)[0] in body


def refused_field(body: dict[str, Any]) -> str | None:
    """The field that the error names, or None if there is no error."""
    try:
        parse(**body)
    except InvalidRequest as error:
        return error.field or ""
    return None


# Formatters


def formatters(n: int, shown: int, **options: bool) -> tuple[CompletionJsonFormatter, CompletionSseFormatter]:
    request = GenerationRequest(request_id="r", prompts=(Prompt("ab"),), sampling_params=SamplingParams(n=n))
    asked = CompletionOptions(model_version="m", n=shown, **options)
    prompts = rendered(2, "ab")
    return CompletionJsonFormatter(request, prompts, options=asked), CompletionSseFormatter(
        request, prompts, options=asked
    )


def test_best_answer_has_the_highest_mean_logprob() -> None:
    whole, _ = formatters(3, 2, log_probs=True)
    for index, logprobs in enumerate([(-1.0, -1.0), (-0.5, -0.5, -0.5, -0.5), (-0.75,)]):
        tokens = tuple(Token(index, str(index), logprob) for logprob in logprobs)
        whole.feed(
            TextDelta(
                index=index, tokens=tokens, text=str(index) * len(tokens), finish_reason=FinishReason.STOP_SEQUENCE
            )
        )
    document = json.loads(whole.finish())
    assert [(one["index"], one["completion"]) for one in document["completions"]] == [(0, "1111"), (1, "2")]
    assert (document["num_tokens_prompt_total"], document["num_tokens_generated"]) == (6, 7)


def test_log_probs_of_tokens_with_the_same_text() -> None:
    whole, _ = formatters(1, 1, log_probs=True)
    top = (Token(1, "x", -0.1), Token(2, "x", -2.0), Token(3, "y", float("-inf")))
    sampled = Token(2, "x", -2.0, False, top)
    whole.feed(TextDelta(tokens=(sampled,), text="x", finish_reason=FinishReason.LENGTH))
    assert b'"log_probs":[{"x":-2.0,"y":-9999.0}]' in whole.finish()


TOKENS = st.builds(
    lambda text, logprob, special: Token(1, text, logprob, special),
    st.text(max_size=3),
    st.floats(-10, 0),
    st.booleans(),
)
STEPS = st.lists(st.lists(TOKENS, max_size=3).map(tuple), min_size=1, max_size=5)


@given(
    sequences=st.lists(STEPS, min_size=1, max_size=3),
    options=st.fixed_dictionaries({name: st.booleans() for name in ("echo", "log_probs", "tokens", "raw")}),
    reason=st.sampled_from([FinishReason.LENGTH, FinishReason.EOS_TOKEN, FinishReason.STOP_SEQUENCE]),
)
def test_stream_adds_up_to_the_document(
    sequences: list[list[tuple[Token, ...]]], options: dict[str, bool], reason: FinishReason
) -> None:
    whole, stream = formatters(len(sequences), len(sequences), **options)
    prompt_tokens = (Token(97, "a"), Token(98, "b", -0.5)) if options["echo"] and options["log_probs"] else ()
    sent = b""
    for index, steps in enumerate(sequences):
        for number, tokens in enumerate(steps):
            delta = TextDelta(
                index=index,
                tokens=tokens,
                text="".join(token.text for token in tokens if not token.special),
                finish_reason=reason if number == len(steps) - 1 else None,
                prompt_tokens=() if number else prompt_tokens,
            )
            assert whole.feed(delta) == b""
            sent += stream.feed(delta)
    sent += stream.finish()
    *others, end = json_events(sent.decode())
    document = json.loads(whole.finish())
    for completion in document["completions"]:
        *chunks, summary = [event for event in others if event["index"] == completion["index"]]
        assert (summary["type"], summary["finish_reason"]) == ("stream_summary", completion["finish_reason"])
        assert summary["model_version"] == document["model_version"]
        for name in ("completion", "raw_completion"):
            assert "".join(chunk.get(name, "") for chunk in chunks) == completion.get(name, "")
        for name in ("log_probs", "completion_tokens"):
            assert [item for chunk in chunks for item in chunk.get(name, [])] == completion.get(name, [])
        details = completion.keys() - {"finish_reason"}
        assert all(chunk.keys() == details | {"type"} for chunk in chunks)
    assert end.pop("type") == "completion_summary"
    assert end.items() <= document.items()
