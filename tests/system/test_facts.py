"""Comparing messages by their facts: whole words of one line, and the code of an error."""

from __future__ import annotations

import pytest
from facts import Said, raises, says, tell

from lmi_handlers.core.errors import InvalidRequest, PayloadTooLarge, UnsupportedFeature


@pytest.mark.parametrize("facts", ["stop: 4 3", "3 stop: option.max_strings", "option.max_strings", "at most"])
def test_facts_of_a_line_in_any_order(facts: str) -> None:
    assert says("first\nstop: has 4 strings; at most 3 are allowed (option.max_strings)\nlast", facts)


@pytest.mark.parametrize("facts", ["stop: 5 3", "top:", "string", "max_strings_more", "option.max", "first 4", "-4"])
def test_other_facts(facts: str) -> None:
    assert not says("first\nstop: has 4 strings; at most 3 are allowed (option.max_strings)\nlast", facts)


@pytest.mark.parametrize("text", ["-1", "1.5", "0.1", "10", "1,000", "a1", "1_0"])
def test_a_number_is_not_a_part_of_another(text: str) -> None:
    assert not says(text, "1")


def test_as_many_texts_as_facts() -> None:
    assert tell(["a is 1", "b is 2"], ["a 1", "b 2"])
    assert not tell(["a is 1", "b is 2"], ["b 2", "a 1"])
    assert not tell(["a is 1", "b is 2"], ["a 1"])


def test_a_text_within_a_document() -> None:
    document = {"error": "has 4 strings", "code": 400}
    assert document == {"error": Said("4"), "code": 400}
    assert document != {"error": Said("5"), "code": 400}
    assert document != {"error": "has 4 strings", "code": Said("400")}


def test_an_error_has_class_facts_and_code() -> None:
    with raises(InvalidRequest, "stop: 4", code="too_many"):
        raise InvalidRequest("has 4", field="stop", code="too_many")
    for wrong in (
        InvalidRequest("has 4", field="stop"),
        InvalidRequest("has 5", field="stop", code="too_many"),
        UnsupportedFeature("has 4", field="stop"),
    ):
        with pytest.raises(AssertionError), raises(InvalidRequest, "stop: 4", code="too_many"):
            raise wrong
    with pytest.raises(AssertionError), raises(InvalidRequest, ""):
        raise PayloadTooLarge("has 4")
