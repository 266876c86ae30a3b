"""Feeds text to the parsers of model output, with two functions to call and the texts of typical calls."""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from lmi_handlers.text.output_parsers.message import MessageDelta, MessageParser, ToolCallDelta
from lmi_handlers.text.output_parsers.tool_calls import TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS

SCHEMAS: dict[str, dict[str, object]] = {
    "f": {},
    "get_weather": {
        "type": "object",
        "properties": {
            "location": {"type": "string"},
            "days": {"type": "integer"},
            "hourly": {"type": ["boolean", "null"]},
            "place": {"anyOf": [{"type": "object"}, {"type": "array"}]},
            "note": {"type": ["string", "null"]},
        },
    },
    "web-search.v2": {"properties": "not a schema"},
}

Message = tuple[str, list[tuple[str, str]]]
"""The content, and each call's name and arguments."""


def tagged_call_parser(name: str) -> TaggedCallParser:
    """Return the parser of a model family that may call the functions in `SCHEMAS`."""
    return TaggedCallParser(TOOL_FORMATS[name], SCHEMAS)


def join(deltas: Iterable[MessageDelta]) -> Message:
    """Join deltas as a client does. Checks the order of calls, on which clients rely."""
    content = ""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        content += delta.content
        for call in delta.tool_calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append((call.name, call.arguments))
            else:
                assert call.index == len(calls) - 1
                assert call.arguments
                calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return content, calls


def parse(parser: MessageParser, *pieces: str) -> Message:
    """Parse a message that arrives in `pieces`."""
    return join([*[parser.feed(piece) for piece in pieces], parser.finish()])


def feed_all(parser: MessageParser, *pieces: str) -> list[MessageDelta]:
    """Return the delta of each piece, without the end of the text."""
    return [parser.feed(piece) for piece in pieces]


def content_delta(text: str) -> MessageDelta:
    return MessageDelta(text)


def call_delta(index: int, name: str | None, arguments: str = "") -> MessageDelta:
    return MessageDelta(tool_calls=(ToolCallDelta(index, name, arguments),))


def cut(text: str, data: st.DataObject) -> list[str]:
    """Split text at random places."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


NOTHING = MessageDelta()

PARIS = '{"location": "Paris"}'
CALL = '{"name": "get_weather", "arguments": {"location": "Paris"}}'
LLAMA_CALL = '{"name": "get_weather", "parameters": {"location": "Paris"}}'
XML_CALL = "<function=get_weather>\n<parameter=location>\nParis\n</parameter>\n</function>"
INVOKE = '<invoke name="get_weather">\n<parameter name="location">Paris</parameter>\n</invoke>'
DSML_CALL = (
    '<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="location" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>'
)
STEP_CALL = (
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">\n'
    '<steptml:parameter name="location">Paris</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>'
)
V3_CALL = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{PARIS}\n```<｜tool▁call▁end｜>"
V31_CALL = f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>"
KIMI_CALL = f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{PARIS}<|tool_call_end|>"
WEATHER = ("get_weather", PARIS)
F = ("f", '{"a": 1}')
F_CALL = '{"name": "f", "arguments": {"a": 1}}'
