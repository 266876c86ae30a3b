"""The vectors of `lmi conform`, and whether a difference from one is noticed. No server is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai.types as openai_types
import pytest
from openai.types import chat, responses
from pydantic import TypeAdapter

from lmi_handlers.tools.conform.apis import APIS
from lmi_handlers.tools.conform.exchange import Received
from lmi_handlers.tools.conform.judge import judge
from lmi_handlers.tools.conform.records import EVENTS, AnswerRecords, BrokenFormat
from lmi_handlers.tools.conform.shape import Rules, difference
from lmi_handlers.tools.conform.vectors import Vector, api

VECTORS = [(name, vector) for name in APIS for vector in api(name).vectors]
WITH_RECORDS = [
    pytest.param(vector, id=f"{name}: {vector.feature}: {vector.case}")
    for name, vector in VECTORS
    if vector.answer.records is not None
]


def written(vector: Vector, documents: list[Any]) -> Received:
    """The reference's answer, with these documents."""
    answer = vector.answer
    texts = [document if isinstance(document, str) else json.dumps(document) for document in documents]
    kind = answer.content_type or "application/json"
    if kind.startswith(EVENTS):
        assert answer.records is not None
        name = "event: x\n" if answer.records.named else ""
        text = "".join(f"{name}data: {text}\n\n" for text in [*texts, *["[DONE]"] * answer.records.done])
    else:
        text = "".join(f"{text}\n" for text in texts) if answer.streams else texts[0]
    assert isinstance(answer.status, int)
    headers = {"content-type": kind, **dict.fromkeys(answer.headers, "x")}
    return Received(status=answer.status, headers=headers, body=text.encode(), seconds=0)


def documents(vector: Vector) -> list[Any]:
    assert vector.answer.records is not None
    return vector.answer.records.documents


STREAMS = [
    pytest.param(vector, id=f"{name}: {vector.feature}: {vector.case}")
    for name, vector in VECTORS
    if vector.answer.records is not None and len(vector.answer.records.documents) > 1
]


def test_features_have_different_cases() -> None:
    named = [(name, vector.feature, vector.case) for name, vector in VECTORS]
    assert len(set(named)) == len(named)
    assert all(api(name).vectors for name in APIS)


@pytest.mark.parametrize("vector", WITH_RECORDS)
def test_the_reference_conforms_to_itself(vector: Vector) -> None:
    assert judge(vector.answer, written(vector, documents(vector))).difference is None


def fields(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield each field in a document: its path, the object that has it, and its name."""
    if isinstance(value, dict):
        for name in value:
            place = f"{path}.{name}" if path else name
            yield place, value, name
            yield from fields(value[name], place)
    elif isinstance(value, list):
        for element in value:
            yield from fields(element, f"{path}[]")


@pytest.mark.parametrize("vector", WITH_RECORDS)
def test_other_types_and_missing_fields_are_noticed(vector: Vector) -> None:
    """The last record is looked at: no other one of its kind can excuse what it lacks."""
    given, rules = documents(vector), vector.answer.rules
    free = rules.any | rules.optional
    for path, _, _ in list(fields(given[-1])):
        if any(path == other or path.startswith((f"{other}.", f"{other}[")) for other in free):
            continue
        for change in ("missing", "another type"):
            changed = json.loads(json.dumps(given))
            owner, name = next((owner, name) for place, owner, name in fields(changed[-1]) if place == path)
            siblings = sum(place == path for place, _, _ in fields(changed[-1]))
            if change == "another type":
                owner[name] = {"of": "another type"} if not isinstance(owner[name], dict) else "text"
            elif siblings == 1:
                del owner[name]
            found = judge(vector.answer, written(vector, changed))
            assert siblings > 1 or found.verdict == "differs", (path, change)


@pytest.mark.parametrize("vector", STREAMS)
def test_the_order_of_records_is_noticed(vector: Vector) -> None:
    given = documents(vector)
    for changed in (given[:-1], [*given, given[0]], given[::-1]):
        assert judge(vector.answer, written(vector, changed)).verdict == "differs"


OPENAI = {
    "chat.completion": chat.ChatCompletion,
    "chat.completion.chunk": chat.ChatCompletionChunk,
    "text_completion": openai_types.Completion,
    "response": responses.Response,
}


@pytest.mark.parametrize(
    "document",
    [
        document
        for name in ("openai", "openai-responses")
        for vector in api(name).vectors
        if vector.answer.records is not None and vector.answer.status == 200 and "streams" not in vector.feature
        for document in vector.answer.records.documents
        if document["object"] in OPENAI
    ],
)
def test_references_are_what_openais_client_reads(document: Any) -> None:
    TypeAdapter(OPENAI[document["object"]]).validate_python(document, strict=True)


@pytest.mark.parametrize(
    ("examples", "found", "rules", "expected"),
    [
        ([{"a": 1}], {"a": 2}, Rules(), None),
        ([{"a": 1}], {"a": 2.5}, Rules(), "a is 2.5, not an integer"),
        ([{"a": 1.5}], {"a": 2}, Rules(), None),
        ([{"a": None}, {"a": "x"}], {"a": None}, Rules(), None),
        ([{"a": True}], {"a": 1}, Rules(), "a is 1, not a boolean"),
        ([{"a": 1}], {}, Rules(), "a is missing"),
        ([{"a": 1}], {}, Rules(optional=frozenset({"a"})), None),
        ([{"a": 1}, {}], {}, Rules(), None),
        ([{"a": 1}], {"a": 1, "b": 2}, Rules(), '"b" is not a field of the reference'),
        ([{"a": 1}], {"a": 1, "b": 2}, Rules(open=True), None),
        ([{"a": [{"b": 1}]}], {"a": [{"b": 1}, {"b": "x"}]}, Rules(), 'a[].b is "x", not an integer'),
        ([{"a": [1]}], {"a": []}, Rules(), "a is empty"),
        ([{"a": []}], {"a": [1]}, Rules(), "a is not empty"),
        ([{"object": "list"}], {"object": "lists"}, Rules(), 'object is "lists", not "list"'),
        ([{"why": "length"}], {"why": "x"}, Rules(one_of={"why": ["length"]}), 'why is "x", not "length"'),
        ([[0.5]], [0.5, "x"], Rules(), '[] is "x", not a number'),
    ],
)
def test_difference(examples: list[Any], found: Any, rules: Rules, expected: str | None) -> None:
    assert difference(examples, found, rules) == expected


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (b'data: {"a": 1}\n', EVENTS, "the last event is not followed by an empty line"),
        (b"data: [DONE]\n\ndata: 1\n\n", EVENTS, "an event follows [DONE]"),
        (b'{"a": 1}\n\n', EVENTS, 'a line of an event is "{\\"a\\": 1}"'),
        (b'{"a": 1}\n{"a"', "application/jsonlines", "the last line has no end"),
        (b"{'a': 1}", "application/json", "\"{'a': 1}\" is not JSON"),
        (b'{"a": "\xff"}', "application/json", '"{\\"a\\": \\"\\ufffd\\"}" is not JSON'),
        (b"[" * 100_000, "application/json", f'"{"[" * 40}" is not JSON'),
    ],
)
def test_broken_formats(body: bytes, kind: str, problem: str) -> None:
    with pytest.raises(BrokenFormat) as raised:
        AnswerRecords.of(body, kind)
    assert str(raised.value) == problem


def test_events_may_have_comments_names_and_carriage_returns() -> None:
    body = b": wait\r\n\r\nevent: a\r\ndata: 1\r\n\r\nevent: b\r\ndata:[2,\r\ndata:3]\r\n\r\ndata: [DONE]\r\n\r\n"
    assert AnswerRecords.of(body, f"{EVENTS}; charset=utf-8") == AnswerRecords([1, [2, 3]], done=True, named=True)
