"""How two answers differ: in one word, at which byte, and with volatile fields aside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.tools.client.comparison import (
    CompleteAnswer,
    Kind,
    compare,
    differences,
    finish_reason_of,
    first_difference,
    parting_of,
    text_of,
)

JSON, LINES, EVENTS = "application/json", "application/jsonlines", "text/event-stream"
LMI = '{"generated_text": "one two", "details": {"finish_reason": "length", "tokens": [{"id": 5, "log_prob": -0.25}]}}'
CHAT = '{"id":"chatcmpl-1","created":1,"choices":[{"text":"one two","finish_reason":"stop"}]}'
TGI = (
    'data: {"token":{"id":1,"text":"one"},"generated_text":null}\n\n'
    'data: {"token":{"id":2,"text":" two"},"generated_text":"one two"}\n\n'
)


def reply(body: str, content_type: str = JSON, status: int = 200) -> CompleteAnswer:
    return CompleteAnswer(status, content_type, body.encode())


@pytest.mark.parametrize(
    ("content_type", "old", "new", "kind", "detail"),
    [
        (JSON, LMI, LMI, Kind.EQUAL, ""),
        (JSON, LMI, LMI.replace("one two", "one too"), Kind.TEXT, "5 of 7"),
        (JSON, LMI, LMI.replace('"length"', '"eos_token"'), Kind.VALUES, "$.details.finish_reason"),
        (JSON, LMI, LMI.replace("-0.25", "-0.2500001"), Kind.ROUNDING, "log_prob"),
        (JSON, LMI, LMI.replace("-0.25", "-0.5"), Kind.VALUES, "log_prob"),
        (JSON, LMI, LMI.replace('"id": 5', '"id": 6'), Kind.VALUES, "[0].id"),
        (
            JSON,
            json.dumps({"a": [0.01] * 900}),
            json.dumps({"a": [0.01001] * 900}),
            Kind.ROUNDING,
            "another vector of 900",
        ),
        (JSON, json.dumps({"a": [0.01] * 900}), json.dumps({"a": [0.005] * 900}), Kind.VALUES, "another vector of 900"),
        (JSON, '{"a":[0.5,1]}', '{"a":[0.5]}', Kind.VALUES, "$.a[1]"),
        (JSON, '{"a":0.5}', '{"a":1' + "0" * 400 + "}", Kind.VALUES, "$.a"),
        (JSON, LMI, LMI.replace('": ', '":'), Kind.FORMAT, "white space"),
        (JSON, LMI, LMI.replace("log_prob", "logprob"), Kind.FORMAT, "log_prob is missing"),
        (JSON, LMI, f"[{LMI}]", Kind.FORMAT, "$ was object, now list"),
        (JSON, LMI, LMI.replace("two", "2").replace("log_prob", "logprob"), Kind.FORMAT, "log_prob is missing"),
        (JSON, LMI, LMI.replace("two", "2").replace("-0.25", "null"), Kind.TEXT, "4 of 7"),
        (JSON, '{"a":1,"b":"x"}', '{"b":"y","a":1}', Kind.FORMAT, "order"),
        (JSON, '{"a":1.0}', '{"a":1.00}', Kind.FORMAT, "written differently"),
        (JSON, '{"a":"\\u00e9"}', '{"a":"é"}', Kind.FORMAT, "escapes"),
        (JSON, '{"a":[]}', '{"a":[{"b":1}]}', Kind.VALUES, "$.a[0]"),
        (JSON, LMI, "no JSON", Kind.FORMAT, "JSON, now not JSON"),
        (JSON, CHAT, CHAT.replace("chatcmpl-1", "chatcmpl-99").replace('"created":1', '"created":170'), Kind.EQUAL, ""),
        (EVENTS, TGI, f":\n\n{TGI}", Kind.EQUAL, ""),
        (EVENTS, TGI, TGI.replace("data: ", "data:"), Kind.FORMAT, "data: {}"),
        (EVENTS, TGI, f"{TGI}data: [DONE]\n\n", Kind.FORMAT, "[DONE]"),
        (EVENTS, TGI, TGI.replace(" two", " 2").replace("one two", "one 2"), Kind.TEXT, "4 of 7"),
        (EVENTS, TGI, TGI.replace('"id":2', '"id":3'), Kind.VALUES, "record 2: $.token.id"),
        (
            LINES,
            '{"token":{"text":"one"}}\n',
            '{"token":{"text":"o"}}\n{"token":{"text":"ne"}}\n',
            Kind.VALUES,
            "1 rec",
        ),
        ("text/plain", "one two", "one 2", Kind.TEXT, "4 of 7"),
    ],
)
def test_kind(content_type: str, old: str, new: str, kind: Kind, detail: str) -> None:
    found = compare(reply(old, content_type), reply(new, content_type))
    assert (found.kind, found.offset is None) == (kind, kind is Kind.EQUAL)
    assert detail in found.detail


def test_status_and_content_type_come_first() -> None:
    assert compare(reply(LMI), reply("x", status=422)).kind is Kind.STATUS
    assert compare(reply(LMI), reply(LMI, LINES)).kind is Kind.FORMAT
    assert compare(reply(LMI, ""), reply(LMI, LINES)).kind is Kind.EQUAL
    assert compare(reply(LMI), reply(LMI, "Application/JSON; charset=utf-8")).kind is Kind.EQUAL


def test_a_sampled_answer_is_compared_in_form_only() -> None:
    other = LMI.replace("one two", "seven").replace('"length"', '"eos_token"')
    assert compare(reply(LMI), reply(other), sampled=True).kind is Kind.FORM
    assert compare(reply(LMI), reply(other.replace("finish_", "")), sampled=True).kind is Kind.FORMAT
    assert compare(reply(LMI), reply(LMI), sampled=True).kind is Kind.EQUAL


def test_the_first_differing_byte_leaves_out_volatile_fields() -> None:
    old = '{"id":"a-long-identifier","created":1700000000,"text":"one two"}'
    new = '{"id":"b","created":1,"text":"one too"}'
    found = compare(reply(old), reply(new))
    assert found.but_for == ("id", "created")
    assert found.offset == old.index("wo")
    assert ("one two" in found.expected, "one too" in found.received) == (True, True)
    assert "identifier" not in found.expected


def test_other_fields_can_be_volatile() -> None:
    old, new = '{"model":"a","text":"x"}', '{"model":"b","text":"x"}'
    assert compare(reply(old), reply(new)).kind is Kind.VALUES
    assert compare(reply(old), reply(new), volatile=["model"]).kind is Kind.EQUAL


def test_a_name_within_a_text_is_not_a_field() -> None:
    old, new = (json.dumps({"text": json.dumps({"id": value})}) for value in ("a", "b"))
    assert compare(reply(old), reply(new)).kind is Kind.TEXT


@pytest.mark.parametrize("body", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, "\x00", "", "[1e400]"])
def test_hostile_documents(body: str) -> None:
    for content_type in (JSON, EVENTS):
        assert compare(reply(body, content_type), reply(body, content_type)).kind is Kind.EQUAL
        assert compare(reply(body, content_type), reply(LMI, content_type)).kind is not Kind.EQUAL
        assert compare(reply(LMI, content_type), reply(body, content_type)).kind is not Kind.EQUAL


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_first_difference(old: bytes, new: bytes) -> None:
    place = first_difference(old, new)
    if place is None:
        assert old == new
    else:
        assert old[:place] == new[:place]
        assert old[place : place + 1] != new[place : place + 1]


def test_parting_counts_characters() -> None:
    assert [parting_of("één", "één"), parting_of("één", "éen"), parting_of("é", "éé")] == [3, 1, 1]


@pytest.mark.parametrize(
    ("document", "text", "reason"),
    [
        (json.loads(LMI), "one two", "length"),
        ([json.loads(LMI)], "one two", "length"),
        (json.loads(CHAT), "one two", "stop"),
        ({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}, "x", ""),
        ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, "", "end_turn"),
        ({"type": "response.completed", "response": {"status": "completed"}}, "", "completed"),
        ({"error": "failed", "code": 424}, "", ""),
        (7, "", ""),
    ],
)
def test_text_and_finish_reason(document: Any, text: str, reason: str) -> None:
    assert (text_of([document]), finish_reason_of([document])) == (text, reason)


def test_differences_name_their_place() -> None:
    found = differences([{"a": [1, {"b": 2}], "id": "x"}], [{"a": [1, {"b": 3}], "id": "y", "c": 4}], frozenset({"id"}))
    assert list(found) == [("$.a[1].b", 2, 3), ("$.c", None, 4)]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ('{"generated_text": "one"}', '{"generated_text": "two"}', Kind.FORM),
        ('{"generated_text": "one"}', '{"generated_text": ""}', Kind.TEXT),
        ('{"choices": [{"text": "one"}]}', '{"choices": []}', Kind.TEXT),
        ('{"generated_text": ""}', '{"generated_text": "two"}', Kind.FORM),
    ],
)
def test_a_drawn_text_may_be_another_one_but_not_be_gone(old: str, new: str, kind: Kind) -> None:
    assert compare(reply(old), reply(new), sampled=True).kind is kind


@pytest.mark.parametrize(("score", "kind"), [("1", Kind.EQUAL), ("1.001", Kind.ROUNDING)])
def test_ids_that_a_model_gives_to_a_tool_are_not_volatile(score: str, kind: Kind) -> None:
    call = '{"id":"msg_%s","content":[{"type":"tool_use","id":"toolu_%s","input":{"user":{"id":"%s"}}}],"score":%s}'
    old, same, other = (
        reply(call % given) for given in (("1", "2", "42", "1"), ("3", "4", "42", score), ("3", "4", "43", score))
    )
    assert compare(old, same).kind is kind
    found = compare(old, other)
    assert (found.kind, "$.content[0].input.user.id" in found.detail) == (Kind.VALUES, True)
