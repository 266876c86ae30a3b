"""Limits on a request's size: how bodies are measured before decoding, and the errors for those that are too large."""

from __future__ import annotations

import json
from typing import Any

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.apis.openai.body import ChatCompletionBody, CompletionBody
from lmi_handlers.apis.structured_outputs import StructuredOutputsBody
from lmi_handlers.config.budget import MAX_FIELDS, Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest, PayloadTooLarge
from lmi_handlers.core.json_shape import JsonShape, count_members, json_shape, outer_names, outer_text

TEXTS = st.text(st.sampled_from('ab\\"\n{}[]:,é😀'))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


def budget(**options: Any) -> Budget:
    return Budget.of(ServingProperties(**options))


def shape_of(value: Any) -> JsonShape:
    """The expected counts, from the decoded body."""
    if not isinstance(value, dict | list):
        return JsonShape(0, 0, 0)
    items = list(value.values() if isinstance(value, dict) else value)
    shapes = [shape_of(item) for item in items]
    return JsonShape(
        1 + sum(shape.containers for shape in shapes),
        (len(items) if isinstance(value, dict) else 0) + sum(shape.members for shape in shapes),
        max(len(items) - 1, 0) + sum(shape.commas for shape in shapes),
    )


@given(VALUES, st.booleans(), st.sampled_from([2, 4, 6, 1 << 16]))
def test_measured_size_of_a_text_is_its_decoded_size(value: Any, ascii_only: bool, chunk: int) -> None:
    shape = json_shape(json.dumps(value, ensure_ascii=ascii_only).encode(), chunk=chunk)
    assert shape == shape_of(value)
    assert shape.members == count_members(value)


@given(st.binary(max_size=200) | TEXTS.map(str.encode), st.sampled_from([2, 4, 6]))
def test_measure_does_not_depend_on_chunk_boundaries(data: bytes, chunk: int) -> None:
    assert json_shape(data, chunk=chunk) == json_shape(data)


NAMES = st.sampled_from(["model", "mode", 'model"', "\\model", "a"])
INNER = st.recursive(
    NAMES | TEXTS | st.none(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=10
)


@given(st.dictionaries(NAMES, INNER), st.sampled_from([None, 1]), st.sampled_from([2, 4, 1 << 16]))
def test_a_text_is_found_without_decoding_the_rest(value: dict[str, Any], indent: int | None, chunk: int) -> None:
    text = value.get("model")
    found = outer_text(json.dumps(value, indent=indent).encode(), "model", most=1000, chunk=chunk)
    assert found == (text if isinstance(text, str) else None)


@given(VALUES, st.sampled_from([None, 1]), st.sampled_from([2, 4, 1 << 16]))
def test_names_of_the_outermost_object_are_counted(value: Any, indent: int | None, chunk: int) -> None:
    expected = len(value) if isinstance(value, dict) else 0
    assert outer_names(json.dumps(value, indent=indent).encode(), enough=1000, chunk=chunk) == expected


def test_names_of_a_body_are_limited_and_those_within_it_are_not() -> None:
    """Each of the first becomes an object: 245,000 of them held up the other clients of a worker for 150 ms."""
    names = {str(number): 1 for number in range(MAX_FIELDS)}
    budget().check_json(json.dumps(names | {"0": names}).encode())
    with raises(PayloadTooLarge, f"{MAX_FIELDS} names", code="too_many_values"):
        budget().check_json(b"{" + b'"":1,' * MAX_FIELDS + b'"":1}')


@given(st.binary(max_size=100) | TEXTS.map(str.encode))
def test_what_is_no_json_has_texts_or_none(data: bytes) -> None:
    assert isinstance(outer_text(b'{"model":' + data, "model", most=1000), str | None)


def test_a_name_within_too_many_objects() -> None:
    data = json.dumps({"x": [{"model": "a"}] * 10, "model": "b"}).encode()
    assert outer_text(data, "model", most=11) == "b"
    with raises(PayloadTooLarge, "10 objects model option.max_json_containers", code="too_many_values"):
        outer_text(data, "model", most=10)


@given(VALUES, st.integers(1, 5), st.integers(1, 5))
def test_accepted_bodies_are_within_the_limits(value: Any, containers: int, values: int) -> None:
    bounds = budget(max_json_containers=containers, max_json_values=values)
    shape = shape_of(value)
    fits = shape.containers <= containers and shape.values <= values
    try:
        bounds.check_json(json.dumps(value).encode())
    except PayloadTooLarge:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(
    ("data", "options", "option"),
    [
        (b'{"inputs":"' + b"a" * 100 + b'"}', {"max_text_bytes": 99}, "max_text_bytes"),
        (b"[" + b"{}," * 100 + b"1]", {"max_json_containers": 99}, "max_json_containers"),
        (b"[" + b"1," * 100 + b"1]", {"max_json_values": 99}, "max_json_values"),
    ],
)
def test_error_for_a_large_body_names_the_option(data: bytes, options: dict[str, int], option: str) -> None:
    with pytest.raises(PayloadTooLarge, match=rf"\b{options[option]}\b.*\(option\.{option}\)"):
        budget(**options).check_json(data)
    budget().check_json(data)


def test_lines_are_counted() -> None:
    bounds = budget(max_batch_records=3)
    bounds.check_lines(b"1\n2\n3\n")
    with pytest.raises(PayloadTooLarge, match=r"\b3\b.*option.max_batch_records") as refused:
        bounds.check_lines(b"1\n2\n3\n\n")
    assert refused.value.code == "too_many_lines"


@pytest.mark.parametrize(
    ("url", "counts"),
    [
        (b'"data:image/png;base64,' + b"A" * 1000 + b'"', False),
        (b'"DATA:image/png;base64,' + b"A" * 1000 + b'"', False),
        (b'"data:image\\/png;base64,' + b"A\\/" * 400 + b"A" * 600_000 + b'"', False),
        (b'"data:' + b"A" * ((1 << 18) - 66) + b"\\/" * 400 + b'"', False),
        (b'"data:' + b"\\\\/" * 400 + b'"', True),
        (b'"' + b"A" * 1000 + b'"', True),
        (b'"\\"data:' + b"A" * 1000 + b'"', True),
        (b'"data:' + "é".encode() * 500 + b'"', True),
        (b'"data:' + b"\\n" * 500 + b'"', True),
        (b'"data:' + b"A" * 1000, True),
    ],
    ids=[
        "image",
        "capitals",
        "escaped slashes",
        "an escape over two chunks",
        "escaped backslashes",
        "text",
        "quoted in a text",
        "not ASCII",
        "escapes",
        "unfinished",
    ],
)
def test_images_do_not_count_as_text(url: bytes, counts: bool) -> None:
    bounds = budget(max_text_bytes=500)
    data = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":' + url + b"}}]}]}"
    if counts:
        with pytest.raises(PayloadTooLarge, match="max_text_bytes"):
            bounds.check_json(data)
    else:
        bounds.check_json(data)


def test_images_have_a_limit_of_their_own() -> None:
    data = b'[{"url":"data:image/png;base64,' + b"A" * 200_000 + b'"}]'
    with raises(PayloadTooLarge, "200022 1000 option.max_image_bytes", code="images_too_large"):
        budget(max_text_bytes=1000, max_image_bytes=1000).check_json(data)
    budget(max_text_bytes=1000, max_image_bytes=200_000).check_json(data)
    budget(max_text_bytes=1000, max_image_bytes=1000, max_audio_bytes=200_000).check_json(data)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            ChatCompletionBody(messages=[], stop=["a"] * 4),
            "stop: 4 3 option.max_strings",
        ),
        (ChatCompletionBody(messages=[], stop="a" * 11), "stop: 11 10"),
        (ChatCompletionBody(messages=[], bad_words=["a" * 6] * 2), "bad_words: 12 10"),
        (
            CompletionBody(prompt="", logit_bias={1: 0, 2: 0, 3: 0}),
            "logit_bias: 3 2",
        ),
        (CompletionBody(prompt="", stop_token_ids=[1, 2, 3]), "stop_token_ids: 3 2"),
        (CompletionBody(prompt="", guided_regex="a" * 21), "guided_regex: 21 20"),
        (CompletionBody(prompt="", guided_json={"a": "b" * 20}), "guided_json: 28 20"),
        (
            CompletionBody(prompt="", structured_outputs=StructuredOutputsBody(grammar="a" * 21)),
            "structured_outputs.grammar: 21 20 option.max_schema_bytes",
        ),
        (
            CompletionBody(prompt="", priority=-1),
            "priority: 0 -1",
        ),
    ],
)
def test_each_field_has_a_limit(body: CompletionBody | ChatCompletionBody, message: str) -> None:
    bounds = budget(max_strings=3, max_string_characters=10, max_token_ids=2, max_schema_bytes=20)
    with raises(InvalidRequest, message):
        bounds.check_fields(body)
    budget(min_priority=-1).check_fields(body)


def test_names_have_a_fixed_limit() -> None:
    with raises(InvalidRequest, "model: 1025 1024"):
        budget().check_fields(CompletionBody(prompt="", model="m" * 1025))
    budget().check_fields(CompletionBody(prompt="", model="m" * 1024))


def test_operator_can_allow_priorities() -> None:
    budget(min_priority=-2).check_fields(CompletionBody(prompt="", priority=-2))
    assert budget(min_priority=-2).keywords()["priority"] == {"minimum": -2}


def test_sequences_are_counted() -> None:
    bounds = budget(max_sequences=8)
    bounds.check_sequences("inputs", 4, 2)
    with raises(InvalidRequest, "inputs: 3 8 option.max_sequences"):
        bounds.check_sequences("inputs", 3, 3)
