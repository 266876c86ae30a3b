"""Random tool calls are parsed correctly, random text is never lost, and parsing takes linear time."""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_messages import (
    CALL,
    DSML_CALL,
    F_CALL,
    INVOKE,
    KIMI_CALL,
    SCHEMAS,
    STEP_CALL,
    V3_CALL,
    V31_CALL,
    XML_CALL,
    Message,
    cut,
    parse,
    tagged_call_parser,
)

from lmi_handlers.text.output_parsers.message import MessageParser
from lmi_handlers.text.output_parsers.tool_calls import CallListParser
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS

FRAGMENTS = [
    *"{}[]():,;=<>\"'\\`|/ \n\t",
    "x", "é", "😀", "0", "-1.5", "f", "name", "a", "\\n", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\u12",
    '"name"', '"arguments"', '"parameters"', '"function"', '"_name"', '"f"', ": ", ", ", "null", "None",
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>",
    "<|tool_call|>", "<tool_calls>", "functools", "<|action_start|><|plugin|>", "<|action_end|>", "<function_calls>",
    "```json\n", "```", "<function=f>", "</function>", "<parameter=days>", "<parameter=location>", "</parameter>",
    '{"name": "f", "arguments": ', '{"name": "get_weather", "parameters": {"a": ', "f(", "[f(a=", "get_weather(days=",
    "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", '<invoke name="f">', '<parameter name="', '">', "</invoke>",
    "]<]minimax[>[", "<a>", "</a>", "<invoke name=f>", "]<]minimax[>[<invoke name=f>", "]<]minimax[>[</invoke>",
    "<tool_sep>", "<ifm|tool_call>", "<ifm|arg_key>", "</ifm|arg_key>", "<ifm|arg_type>", "<ifm|arg_value>", "<|tools_prefix|>",
    "{\"f\": ", "<function name=\"f\">", "<param name=\"a\">", "<![CDATA[", "]]></param>", "<|START_ACTION|>",
    "<｜DSML｜function_calls>", '<｜DSML｜invoke name="f">', '<｜DSML｜parameter name="a', '" string="false">',
    "</｜DSML｜parameter>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>", "<|tool_calls_section_end|>", "<|tool_call>", "call:f{a:", '<|"|>', "<escape>",
    "<tool_call|>",
    "<|start|>assistant", "<|channel|>commentary to=functions.", " <|constrain|>json", "<|message|>", "<|call|>",
    CALL, F_CALL, XML_CALL, INVOKE, DSML_CALL, STEP_CALL, V3_CALL, V31_CALL, KIMI_CALL,
]  # fmt: skip
SOUP = st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join)
STRINGS = st.lists(st.sampled_from(FRAGMENTS) | st.characters(exclude_categories=["Cs"]), max_size=6).map("".join)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(STRINGS, values, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(sorted(SCHEMAS))
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(STRINGS, VALUES, max_size=3)), min_size=1, max_size=3)
WORDS = st.text("ab <[`é.!", max_size=12)

Arguments = dict[str, Any]
Render = Callable[[list[tuple[str, Arguments]]], str]


def objects(calls: list[tuple[str, Arguments]], key: str = "arguments") -> list[str]:
    return [json.dumps({"name": name, key: arguments}, ensure_ascii=False) for name, arguments in calls]


def python_list(calls: list[tuple[str, Arguments]]) -> str:
    rendered = [f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})" for name, args in calls]
    return f"[{', '.join(rendered)}]"


def xml(name: str, arguments: Arguments) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{parameters}</function>"


JSON_RENDERS: list[tuple[str, Render]] = [
    ("hermes", lambda calls: "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects(calls))),
    ("hermes", lambda calls: "\n".join(f"<tool_call>\n{text}" for text in objects(calls))),
    ("hermes", lambda calls: "".join(
        f"<tool_call>{json.dumps({'arguments': arguments, 'name': name})}</tool_call>" for name, arguments in calls
    )),
    ("hermes", lambda calls: "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': json.dumps(arguments)})}</tool_call>"
        for name, arguments in calls
    )),
    ("llama3_json", lambda calls: "<|python_tag|>" + "; ".join(objects(calls, "parameters"))),
    ("mistral", lambda calls: f"[TOOL_CALLS] [{', '.join(objects(calls))}]"),
    ("mistral", lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(args)}" for name, args in calls)),
    ("granite", lambda calls: f"<|tool_call|>[{', '.join(objects(calls))}]"),
    ("granite-20b-fc", lambda calls: "".join(f"<function_call> {text}" for text in objects(calls))),
    ("longcat", lambda calls: "".join(f"<longcat_tool_call>{text}</longcat_tool_call>" for text in objects(calls))),
    ("deepseek_v3", lambda calls: "<｜tool▁calls▁begin｜>" + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(args)}\n```<｜tool▁call▁end｜>"
        for name, args in calls
    ) + "<｜tool▁calls▁end｜>"),
    ("deepseek_v31", lambda calls: "<｜tool▁calls▁begin｜>" + "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(args)}<｜tool▁call▁end｜>" for name, args in calls
    ) + "<｜tool▁calls▁end｜>"),
    ("kimi_k2", lambda calls: "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{json.dumps(args)}<|tool_call_end|>"
        for index, (name, args) in enumerate(calls)
    ) + "<|tool_calls_section_end|>"),
    ("openai", lambda calls: "".join(
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(args)}<|call|>"
        for name, args in calls
    )),
    ("json", lambda calls: "".join(f"\n```json\n{text}\n```" for text in objects(calls))),
    ("json", lambda calls: "\n" + json.dumps([{"name": name, "arguments": args} for name, args in calls], indent=1)),
    ("json", lambda calls: "\n" + "\n".join(
        json.dumps({"function": {"_name": name, **arguments}}) for name, arguments in calls
    )),
]  # fmt: skip


def decoded(message: Message) -> tuple[str, list[tuple[str, Any]]]:
    text, calls = message
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize(("name", "render"), JSON_RENDERS)
@settings(max_examples=15)
@given(CALLS, WORDS, WORDS, st.data())
def test_json_calls_with_content_around_them(
    name: str, render: Render, calls: list[tuple[str, Arguments]], before: str, after: str, data: st.DataObject
) -> None:
    # Three backquotes would be a fence, and a bracket would start an untagged list.
    before, after = before.replace("```", "` `"), after.replace("`", "")
    if TOOL_FORMATS[name].bare:
        before = before.replace("[", "(")
    message = parse(tagged_call_parser(name), *cut(f"{before}{render(calls)} {after}", data))
    assert decoded(message) == (before.rstrip() + after.lstrip(), calls)


@given(st.lists(st.tuples(NAMES, st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), VALUES, max_size=3)),
                min_size=1, max_size=3), st.data())  # fmt: skip
def test_python_calls(calls: list[tuple[str, Arguments]], data: st.DataObject) -> None:
    message = parse(tagged_call_parser("pythonic"), *cut(python_list(calls), data))
    assert decoded(message) == ("", calls)


def glm(name: str, arguments: Arguments) -> str:
    pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def invoke(prefix: str, type_mark: str, name: str, arguments: Arguments) -> str:
    parameters = "".join(
        f'<{prefix}parameter name="{key}"{type_mark}>{value}</{prefix}parameter>\n' for key, value in arguments.items()
    )
    return f'<{prefix}invoke name="{name}">\n{parameters}</{prefix}invoke>'


def gemma(quote: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return f"{{{','.join(f'{quote}{key}{quote}:{gemma(quote, item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(gemma(quote, item) for item in value)}]"
    return json.dumps(value)


MARKUP_RENDERS: list[tuple[str, Render]] = [
    ("qwen3_xml", lambda calls: "\n".join(f"<tool_call>\n{xml(*call)}\n</tool_call>" for call in calls)),
    ("seed_oss", lambda calls: "\n".join(f"<seed:tool_call>\n{xml(*call)}\n</seed:tool_call>" for call in calls)),
    ("hermes", lambda calls: "\n".join(glm(*call) for call in calls)),
    ("minimax_m2", lambda calls: (
        f"<minimax:tool_call>\n{''.join(invoke('', '', *call) for call in calls)}\n</minimax:tool_call>"
    )),
    ("deepseek_v32", lambda calls: (
        "<｜DSML｜function_calls>\n" + "\n".join(invoke("｜DSML｜", ' string="true"', *call) for call in calls)
        + "\n</｜DSML｜function_calls>"
    )),
    ("step3", lambda calls: "<｜tool_calls_begin｜>\n" + "\n".join(
        f"<｜tool_call_begin｜>function<｜tool_sep｜>{invoke('steptml:', '', *call)}<｜tool_call_end｜>" for call in calls
    ) + "\n<｜tool_calls_end｜>"),
]  # fmt: skip
VALUE_ENDS = ("</parameter>", "</arg_value>", "</｜DSML｜parameter>", "</steptml:parameter>")


@pytest.mark.parametrize(("name", "render"), MARKUP_RENDERS)
@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            NAMES,
            st.dictionaries(
                st.sampled_from(["location", "other"]),
                STRINGS.filter(lambda text: not any(end in text for end in VALUE_ENDS)),
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
def test_calls_in_tags(name: str, render: Render, calls: list[tuple[str, Arguments]], data: st.DataObject) -> None:
    assert decoded(parse(tagged_call_parser(name), *cut(render(calls), data))) == ("", calls)


def has_no_quote_token(value: Any) -> bool:
    return '<|"|>' not in json.dumps(value).replace('\\"', '"') and "<escape>" not in json.dumps(value)


@pytest.mark.parametrize(
    ("name", "tag", "quote"),
    [
        ("gemma4", ("<|tool_call>", "<tool_call|>"), '<|"|>'),
        ("functiongemma", ("<start_function_call>", "<end_function_call>"), "<escape>"),
    ],
)
@given(CALLS.filter(has_no_quote_token), st.data())
def test_gemma_calls(
    name: str, tag: tuple[str, str], quote: str, calls: list[tuple[str, Arguments]], data: st.DataObject
) -> None:
    text = "".join(f"{tag[0]}call:{function}{gemma(quote, arguments)}{tag[1]}" for function, arguments in calls)
    assert decoded(parse(tagged_call_parser(name), *cut(text, data))) == ("", calls)


@pytest.mark.parametrize(
    "parser",
    [*(lambda name=name: tagged_call_parser(name) for name in TOOL_FORMATS), CallListParser],
    ids=[*TOOL_FORMATS, "list"],
)
@settings(max_examples=15)
@given(SOUP | st.text(), st.data())
def test_the_result_does_not_depend_on_how_the_text_is_split(
    parser: Callable[[], MessageParser], text: str, data: st.DataObject
) -> None:
    message = parse(parser(), text)
    assert parse(parser(), *cut(text, data)) == message
    assert parse(parser(), *text) == message
    if not message[1]:
        assert message[0] == text


LONG = 50_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "text", "calls", "length"),
    [
        ("hermes", "word " * (LONG // 5), 0, LONG),
        ("hermes", " " * LONG, 0, LONG),
        ("hermes", "<tool_cal" * (LONG // 9), 0, LONG // 9 * 9),
        ("hermes", "<tool_call>" * (LONG // 11), 0, LONG // 11 * 11),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * LONG + '"}}', 1, LONG + 9),
        ("hermes", '<tool_call>{"name": "f", "arguments": "' + "\\n" * LONG + '"}', 1, LONG),
        ("hermes", '<tool_call>{"arguments": {"a": "' + "x" * LONG + '"}, "name": "f"}', 1, LONG + 9),
        ("hermes", '<tool_call>{"name": "f", "arguments": ' + "[" * LONG, 1, LONG),
        ("llama3_json", '{"parameters": {"a": "' + "x" * LONG, 0, LONG + 22),
        ("llama3_json", "[" * LONG, 0, LONG),
        ("json", "```" * (LONG // 3), 0, LONG // 3 * 3),
        ("pythonic", "[f(a='" + "x" * LONG, 1, LONG + 7),
        ("pythonic", "[f(a=" + "[" * LONG, 1, LONG + 6),
        ("qwen3_xml", "<function=f><parameter=a>" + "x" * LONG, 1, LONG + 7),
        ("kimi_k2", "<|tool_calls_section_begin|>" * (LONG // 28), 0, LONG // 28 * 28),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>" * (LONG // 47), 0, LONG // 47 * 47),
        ("hermes", "<tool_call>f<arg_key>a</arg_key><arg_value>" + "</arg" * (LONG // 5), 1, LONG + 7),
        ("gemma4", '<|tool_call>call:f{a:<|"|>' + "<|" * (LONG // 2), 1, LONG + 7),
        ("qwen3_xml", "<function=f><parameter=a>" + "\n</para" * (LONG // 7), 1, LONG // 7 * 8 + 5),
    ],
)  # fmt: skip
def test_long_texts_are_parsed_in_linear_time(name: str, text: str, calls: int, length: int) -> None:
    message = parse(tagged_call_parser(name), *(text[start : start + 3] for start in range(0, len(text), 3)))
    assert len(message[1]) == calls
    assert len(message[0]) + sum(len(arguments) for _, arguments in message[1]) == length
