"""Which parts of a tool call are returned as soon as they arrive, and which are held back."""

from __future__ import annotations

from parsed_messages import CALL, F_CALL, NOTHING, WEATHER, F, call_delta, content_delta, feed_all, tagged_call_parser

from lmi_handlers.text.output_parsers.message import MessageDelta, ToolCallDelta


def test_content_is_returned_at_once_except_the_start_of_a_possible_tag() -> None:
    parser = tagged_call_parser("hermes")
    assert feed_all(parser, "Hi", " there", " <too", "l", "s> ", "<tool_call") == [
        content_delta("Hi"),
        content_delta(" there"),
        NOTHING,
        NOTHING,
        content_delta(" <tools>"),
        NOTHING,
    ]
    assert parser.finish() == content_delta(" <tool_call")


def test_the_name_is_returned_before_the_arguments_which_arrive_in_pieces() -> None:
    pieces = [
        "<tool_call>\n",
        '{"name": "get',
        '_weather"',
        ', "arguments',
        '": {"loc',
        'ation": "Par',
        'is"}',
        "}\n</tool_call>",
    ]
    assert feed_all(tagged_call_parser("hermes"), *pieces) == [
        NOTHING,
        NOTHING,
        call_delta(0, "get_weather"),
        NOTHING,
        call_delta(0, None, '{"loc'),
        call_delta(0, None, 'ation": "Par'),
        call_delta(0, None, 'is"}'),
        NOTHING,
    ]


def test_arguments_before_the_name_are_held_back_until_the_name_is_known() -> None:
    pieces = ['<tool_call>{"arguments": {"a"', ': 1}, "name": "f', '"', "}"]
    assert feed_all(tagged_call_parser("hermes"), *pieces) == [
        NOTHING,
        NOTHING,
        call_delta(0, "f", '{"a": 1}'),
        NOTHING,
    ]


def test_string_values_in_tags_are_returned_in_pieces() -> None:
    pieces = ["<function=f>\n<parameter=a>\n", "one\n", "two\n</para", "graph>", "\n</parameter>\n", "</function>"]
    assert feed_all(tagged_call_parser("qwen3_xml"), *pieces) == [
        call_delta(0, "f", '{"a": "'),
        call_delta(0, None, "one"),
        call_delta(0, None, "\\ntwo"),
        call_delta(0, None, "\\n</paragraph>"),
        call_delta(0, None, '"'),
        call_delta(0, None, "}"),
    ]


def test_calls_in_a_section_are_returned_in_pieces() -> None:
    pieces = [
        "<|tool_calls_section_",
        "begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument",
        '_begin|>{"location": "Par',
        'is"}<|tool_call_',
        "end|><|tool_calls_section_end|>",
    ]
    assert feed_all(tagged_call_parser("kimi_k2"), *pieces) == [
        NOTHING,
        NOTHING,
        call_delta(0, "get_weather", '{"location": "Par'),
        call_delta(0, None, 'is"}'),
        NOTHING,
    ]


def test_strings_quoted_by_tokens_are_returned_in_pieces() -> None:
    pieces = ["<|tool_call>call:f", "{a:<|", '"|>Pa', 'r"is<', '|"|', ">}<tool_call|>"]
    assert feed_all(tagged_call_parser("gemma4"), *pieces) == [
        NOTHING,
        call_delta(0, "f", '{"a": '),
        call_delta(0, None, '"Pa'),
        call_delta(0, None, 'r\\"is'),
        NOTHING,
        call_delta(0, None, '"}'),
    ]


def test_json_that_is_not_a_call_becomes_content_after_its_first_key() -> None:
    assert feed_all(tagged_call_parser("llama3_json"), '{"', "answer", '": ', "42", "}") == [
        NOTHING,
        NOTHING,
        NOTHING,
        content_delta('{"answer": 42'),
        content_delta("}"),
    ]


def test_one_piece_may_contain_content_and_several_calls() -> None:
    assert tagged_call_parser("mistral").feed(f"Wait[TOOL_CALLS][{CALL}, {F_CALL}]") == MessageDelta(
        "Wait", (ToolCallDelta(0, *WEATHER), ToolCallDelta(1, *F))
    )
