"""Text that a grammar forces to be arguments or a list of calls, and text without calls."""

from __future__ import annotations

import pytest
from parsed_messages import (
    CALL,
    F_CALL,
    LLAMA_CALL,
    NOTHING,
    WEATHER,
    F,
    Message,
    call_delta,
    content_delta,
    feed_all,
    parse,
)

from lmi_handlers.text.output_parsers.message import NamedCallParser, PlainParser
from lmi_handlers.text.output_parsers.tool_calls import CallListParser


def test_the_plain_parser_returns_all_text_as_content() -> None:
    parser = PlainParser()
    assert feed_all(parser, "<tool_call>", CALL) == [content_delta("<tool_call>"), content_delta(CALL)]
    assert parser.finish() == NOTHING


def test_the_text_of_a_named_call_is_its_arguments() -> None:
    parser = NamedCallParser("get_weather")
    assert feed_all(parser, '{"loc', 'ation": "Paris"}', "") == [
        call_delta(0, "get_weather", '{"loc'),
        call_delta(0, None, 'ation": "Paris"}'),
        NOTHING,
    ]
    assert parser.finish() == NOTHING


def test_a_named_call_without_text_is_still_returned() -> None:
    assert NamedCallParser("f").finish() == call_delta(0, "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[{CALL}, {F_CALL}]", ("", [WEATHER, F])),
        (f" [ {LLAMA_CALL} ]\n", ("", [WEATHER])),
        (CALL, ("", [WEATHER])),
        (f'[{CALL}, {{"name": "f", "arguments": {{"a": ', ("", [WEATHER, ("f", '{"a": ')])),
        (f'[{CALL}, {{"na', (', {"na', [WEATHER])),
        (" [ no", (" [ no", [])),
        (" [] ", (" [] ", [])),
        ("", ("", [])),
    ],
)
def test_a_list_of_calls(text: str, message: Message) -> None:
    assert parse(CallListParser(), text) == message
    assert parse(CallListParser(), *text) == message
