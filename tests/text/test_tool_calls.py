"""Tool calls as models write them: every family whole, in pieces, broken, and as random text."""

# ruff: noqa: RUF001  DeepSeek's tokens have full-width bars.

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.output_parsers.message import (
    MessageDelta,
    MessageParser,
    NamedCallParser,
    PlainParser,
    ToolCallDelta,
)
from lmi_handlers.text.output_parsers.tool_calls import CallListParser, TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS, choose_tool_format

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


def tagged(name: str) -> TaggedCallParser:
    return TaggedCallParser(TOOL_FORMATS[name], SCHEMAS)


def join(deltas: Iterable[MessageDelta]) -> Message:
    """Join deltas as a client does, and check what every client counts on."""
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
    return join([*[parser.feed(piece) for piece in pieces], parser.finish()])


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

GOLDEN: list[tuple[str, str, Message]] = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", ("", [WEATHER])),
    ("hermes", f"<tool_call>{CALL}</tool_call>", ("", [WEATHER])),
    ("hermes", f"One moment.\n\n<tool_call>\n{CALL}\n</tool_call>\n", ("One moment.", [WEATHER])),
    (
        "hermes",
        f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{F_CALL}\n</tool_call>",
        ("", [WEATHER, F]),
    ),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\nDone, I think.", ("Done, I think.", [WEATHER])),
    ("hermes", f"<tool_call>\n{CALL}", ("", [WEATHER])),
    ("hermes", f"<tool_call>\n{CALL}\n<tool_call>\n{F_CALL}", ("", [WEATHER, F])),
    ("hermes", f"<tool_call>\n{CALL}\n{F_CALL}\n</tool_call>", ("", [WEATHER, F])),
    ("hermes", f"<tool_call>\n[{CALL}, {F_CALL}]\n</tool_call>", ("", [WEATHER, F])),
    ("hermes", f'<tool_call> {{ "arguments": {PARIS}, "name": "get_weather"}} </tool_call> ', ("", [WEATHER])),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', ("", [("unknown", "{}")])),
    ("hermes", '<tool_call>{"id": 7, "name": "f", "x": [1], "arguments": {}}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\u00e9\\u00e9\\"}"}</tool_call>',
     ("", [("f", '{"a": "\\u00e9é"}')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": { "a" :1.50,\n"b":[ ] }}</tool_call>',
     ("", [("f", '{ "a" :1.50,\n"b":[ ] }')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>}\\""}}</tool_call>',
     ("", [("f", '{"a": "</tool_call>}\\""}')])),
    ("hermes", '<tool_call>{"name": "\\u0066", "arguments": {}, "arguments": {"a": 1}}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>', ("", [("f", "{}")])),
    ("hermes", r'<tool_call>{"name": "f", "arguments": "\ud83d\ude00 \ud83d \ud83d\u0041 \ude00 \q\u12"}</tool_call>',
     ("", [("f", "😀 � �A � \\q\\u12")])),
    ("hermes", f"<tool_call>\n{XML_CALL}\n</tool_call>", ("", [WEATHER])),
    # A brace too many, a brace too few, no more text
    ("hermes", f"<tool_call>\n{F_CALL}}}\n</tool_call>", ("", [F])),
    ("hermes", f"<tool_call>\n{F_CALL}}}", ("", [F])),
    ("hermes", f"<tool_call>\n{F_CALL[:-1]}\n</tool_call>\nDone", ("Done", [F])),
    ("hermes", f"<tool_call>\n{F_CALL[:-2]}\n</tool_call>\nDone", ("Done", [("f", '{"a": 1\n')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x', ("", [("f", '{"a": "x')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": }</tool_call>', ("", [("f", "")])),
    ("hermes", '<tool_call>{"name": "f", "argum', ("", [("f", "")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": <oops>}}</tool_call> Done',
     ("<oops>}}Done", [("f", '{"a": ')])),
    # No call at all
    ("hermes", "<tool_call>\nsorry\n</tool_call>", ("<tool_call>\nsorry\n</tool_call>", [])),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', ('<tool_call>{"arguments": {}}</tool_call>', [])),
    ("hermes", '<tool_call>{"name": null}</tool_call>', ('<tool_call>{"name": null}</tool_call>', [])),
    ("hermes", '<tool_call>{"name": ""}</tool_call>', ('<tool_call>{"name": ""}</tool_call>', [])),
    ("hermes", f"<tool_call> or <tool_call>{F_CALL}</tool_call>", ("<tool_call> or ", [F])),
    ("hermes", CALL, (CALL, [])),
    ("hermes", " <tool_", (" <tool_", [])),
    ("hermes", "1 < 2 \n", ("1 < 2 \n", [])),
    ("hermes", "", ("", [])),
    # Qwen3-Coder
    ("qwen3_xml", f"I look.\n<tool_call>\n{XML_CALL}\n</tool_call>", ("I look.", [WEATHER])),
    ("qwen3_xml", f"<tool_call>\n{XML_CALL}\n</tool_call>\n<tool_call>\n{XML_CALL}\n</tool_call>", ("", [WEATHER] * 2)),
    ("qwen3_xml", f"I look.\n{XML_CALL}\n</tool_call>\nSo.", ("I look.So.", [WEATHER])),
    ("qwen3_xml", f"<tool_call>{CALL}</tool_call>", ("", [WEATHER])),
    ("qwen3_xml", "<tool_call><function=f></function></tool_call>", ("", [("f", "{}")])),
    ("qwen3_xml", "<function=get_weather><parameter=days>\n3\n</parameter><parameter=hourly> True </parameter>"
     "<parameter=place>\n{\"x\": [1]}\n</parameter></function>",
     ("", [("get_weather", '{"days": 3, "hourly": true, "place": {"x": [1]}}')])),
    ("qwen3_xml", "<function=get_weather><parameter=days>three</parameter><parameter=hourly>None</parameter>"
     "<parameter=note>null</parameter><parameter=location>null</parameter></function>",
     ("", [("get_weather", '{"days": "three", "hourly": null, "note": null, "location": "null"}')])),
    ("qwen3_xml", "<function=get_weather><parameter=note> 7</parameter><parameter=new>7</parameter></function>",
     ("", [("get_weather", '{"note": " 7", "new": "7"}')])),
    ("qwen3_xml", '<tool_call><function=f><parameter=a>\n\nx < "y"\n\n</parameter></function></tool_call>',
     ("", [("f", '{"a": "\\nx < \\"y\\"\\n"}')])),
    ("qwen3_xml", "<tool_call><function=f><parameter=a>\nx</para", ("", [("f", '{"a": "x</para')])),
    ("qwen3_xml", "<function=unknown></function>", ("<function=unknown></function>", [])),
    ("qwen3_xml", "<function=web-search.v2><parameter=a>1</parameter></function>", ("", [("web-search.v2", '{"a": "1"}')])),
    ("qwen3_xml", "<tool_call><function=f", ("<tool_call><function=f", [])),
    # Llama
    ("llama3_json", LLAMA_CALL, ("", [WEATHER])),
    ("llama3_json", f"\n\n{LLAMA_CALL}\n", ("", [WEATHER])),
    ("llama3_json", f"<|python_tag|>{LLAMA_CALL}", ("", [WEATHER])),
    ("llama3_json", f"{LLAMA_CALL}; {LLAMA_CALL}", ("", [WEATHER] * 2)),
    ("llama3_json", f"<|python_tag|>{LLAMA_CALL};{LLAMA_CALL}\n{CALL}", ("", [WEATHER] * 3)),
    ("llama3_json", f'{{"type": "function", {LLAMA_CALL[1:]}', ("", [WEATHER])),
    ("llama3_json", '{"function": "f", "parameters": {}}', ("", [("f", "{}")])),
    ("llama3_json", f"{LLAMA_CALL} Right?", ("Right?", [WEATHER])),
    ("llama3_json", f"{LLAMA_CALL}; right?", ("; right?", [WEATHER])),
    ("llama3_json", '<|python_tag|>brave.call(query="x")', ("", [("brave.call", '{"query": "x"}')])),
    ("llama3_json", "<|python_tag|>import os", ("<|python_tag|>import os", [])),
    ("llama3_json", '{"name": "Bob", "parameters": {}}', ('{"name": "Bob", "parameters": {}}', [])),
    ("llama3_json", '{"location": "Paris"}', ('{"location": "Paris"}', [])),
    ("llama3_json", '{"parameters": {"a": 1}}', ('{"parameters": {"a": 1}}', [])),
    ("llama3_json", '{"name": "f', ('{"name": "f', [])),
    ("llama3_json", "{not json}", ("{not json}", [])),
    ("llama3_json", f"It is {LLAMA_CALL}", (f"It is {LLAMA_CALL}", [])),
    # Mistral
    ("mistral", f"[TOOL_CALLS] [{CALL}]", ("", [WEATHER])),
    ("mistral", f"[TOOL_CALLS][{CALL}, {F_CALL}]", ("", [WEATHER, F])),
    ("mistral", f"[TOOL_CALLS] {CALL}", ("", [WEATHER])),
    ("mistral", f'[TOOL_CALLS] [{{"name": "f", "arguments": {{}}, "id": "123456789"}}, {CALL}]', ("", [("f", "{}"), WEATHER])),
    ("mistral", f"Wait. [TOOL_CALLS]get_weather[ARGS]{PARIS}", ("Wait.", [WEATHER])),
    ("mistral", f'[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]f[ARGS]{{"a": 1}}', ("", [WEATHER, F])),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]0a1b2c3d4[ARGS]{PARIS}", ("", [WEATHER])),
    ("mistral", f"[TOOL_CALLS]get_weather{PARIS}", ("", [WEATHER])),
    ("mistral", '[TOOL_CALLS]web-search.v2{"a": {"b": "}"}} Bye', ("Bye", [("web-search.v2", '{"a": {"b": "}"}}')])),
    ("mistral", f'[TOOL_CALLS] [{CALL}, {{"x": 1}}]', (', {"x": 1}]', [WEATHER])),
    ("mistral", "[TOOL_CALLS] []", ("[TOOL_CALLS] []", [])),
    ("mistral", "[TOOL_CALLS]Hello there", ("[TOOL_CALLS]Hello there", [])),
    ("mistral", "see [1] and [TOOL", ("see [1] and [TOOL", [])),
    # Python
    ("pythonic", '[get_weather(location="Paris")]', ("", [WEATHER])),
    ("pythonic", "<|python_start|>[get_weather(location='Paris'), f(a=1)]<|python_end|>", ("", [WEATHER, F])),
    ("pythonic", "[f()]", ("", [("f", "{}")])),
    ("pythonic", "[f(a=[1, 'x', (2,), {'k': None, 3: True,},], b=-1.5e3, c=Paris, d=007, )]",
     ("", [("f", '{"a": [1, "x", [2], {"k": null, "3": true}], "b": -1.5e3, "c": "Paris", "d": "007"}')])),
    ("pythonic", r"""[f(a='it\'s "\x41\u00e9\n\d\\', b="it's ]) é")]""",
     ("", [("f", '{"a": "it\'s \\"A\\u00e9\\n\\\\d\\\\", "b": "it\'s ]) é"}')])),
    ("pythonic", "[f(a={}, b=[], c='')]", ("", [("f", '{"a": {}, "b": [], "c": ""}')])),
    ("pythonic", LLAMA_CALL, ("", [WEATHER])),
    ("pythonic", "[f(a=1, b='x", ("", [("f", '{"a": 1, "b": "x')])),
    ("pythonic", "[f('x')]", ("'x')]", [("f", "")])),
    ("pythonic", "[g(a=1)]", ("[g(a=1)]", [])),
    ("pythonic", "[f] is a function", ("[f] is a function", [])),
    ("olmo3", "So:\n<function_calls>\nget_weather(location='Paris')\nf(a=1)\n</function_calls>", ("So:", [WEATHER, F])),
    ("olmo3", "<function_calls>\nf(a=null, b=true)\n</function_calls>", ("", [("f", '{"a": null, "b": true}')])),
    # XML-like tags, with types by the schema
    ("seed_oss", f"So.\n<seed:tool_call>\n{XML_CALL}\n</seed:tool_call>", ("So.", [WEATHER])),
    ("seed_oss", "<seed:tool_call>\n<function=get_weather>\n<parameter=location>Paris</parameter>\n"
     "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
     ("", [("get_weather", '{"location": "Paris", "days": 3}')])),
    ("hermes", "<tool_call>get_weather\n<arg_key>location</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
     ("", [WEATHER])),
    ("hermes", "\n<tool_call>get_weather<arg_key>location</arg_key><arg_value>Paris</arg_value></tool_call>\n"
     "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>hourly</arg_key>\n"
     "<arg_value>true</arg_value>\n<arg_key>place</arg_key>\n<arg_value>{\"x\": [1]}</arg_value>\n</tool_call>",
     ("", [WEATHER, ("get_weather", '{"days": 3, "hourly": true, "place": {"x": [1]}}')])),
    ("hermes", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>\n x\n</arg_value>\n</tool_call>",
     ("", [("f", '{"a": "\\n x\\n"}')])),
    ("hermes", "<tool_call>f</tool_call> <tool_call>f\n</tool_call>", ("", [("f", "{}")] * 2)),
    ("hermes", "<tool_call>g<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", ("", [("g", '{"a": "1"}')])),
    ("hermes", "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg", ("", [("f", '{"a": "x</arg')])),
    ("hermes", "<tool_call>f<arg_key>a</arg_key>x</tool_call>.", ("</arg_key>x.", [("f", "")])),
    ("hermes", "<tool_call>g</tool_call>", ("<tool_call>g</tool_call>", [])),
    ("minimax_m2", f"So.\n<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>", ("So.", [WEATHER])),
    ("minimax_m2", f'<minimax:tool_call>\n{INVOKE}\n<invoke name="f">\n</invoke>\n</minimax:tool_call>',
     ("", [WEATHER, ("f", "{}")])),
    ("minimax_m2", f"So.\n{INVOKE}\n</minimax:tool_call>", ("So.", [WEATHER])),
    ("minimax_m2", '<minimax:tool_call><invoke name="get_weather"><parameter name="days">3</parameter><parameter name="note">'
     "\n7 < 8\n</parameter></invoke></minimax:tool_call>", ("", [("get_weather", '{"days": 3, "note": "\\n7 < 8\\n"}')])),
    ("minimax_m2", '<minimax:tool_call><invoke name="g"></invoke></minimax:tool_call>', ("", [("g", "{}")])),
    ("minimax_m2", '<invoke name="g"></invoke>', ('<invoke name="g"></invoke>', [])),
    ("minimax_m2", "<minimax:tool_call><b>no</b></minimax:tool_call>", ("<minimax:tool_call><b>no</b></minimax:tool_call>", [])),
    ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="a" b>1</parameter></invoke></minimax:tool_call>',
     ('" b>1</parameter></invoke>', [("f", "")])),
    # DeepSeek's V3.2 says what is a string
    ("deepseek_v32", f"So.\n\n<｜DSML｜function_calls>\n{DSML_CALL}\n</｜DSML｜function_calls>", ("So.", [WEATHER])),
    ("deepseek_v32", f"<｜DSML｜tool_calls>\n{DSML_CALL}\n{DSML_CALL}\n</｜DSML｜tool_calls>", ("", [WEATHER] * 2)),
    ("deepseek_v32", '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="days" string="true">3'
     '</｜DSML｜parameter><｜DSML｜parameter name="location" string="false">[1]</｜DSML｜parameter><｜DSML｜parameter name="new"'
     ' string="false">null</｜DSML｜parameter><｜DSML｜parameter name="other" string="false">x</｜DSML｜parameter>'
     '<｜DSML｜parameter name="hourly">true</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>',
     ("", [("get_weather", '{"days": "3", "location": [1], "new": null, "other": "x", "hourly": true}')])),
    ("deepseek_v32", f"{DSML_CALL}\nDone", ("Done", [WEATHER])),
    # Calls in a section
    ("deepseek_v3", f"So.<｜tool▁calls▁begin｜>{V3_CALL}<｜tool▁calls▁end｜>", ("So.", [WEATHER])),
    ("deepseek_v3", f"<｜tool▁calls▁begin｜>{V3_CALL}\n{V3_CALL}<｜tool▁calls▁end｜>.", (".", [WEATHER] * 2)),
    ("deepseek_v3", V3_CALL, ("", [WEATHER])),
    ("deepseek_v3", V3_CALL.removesuffix('s"}\n```<｜tool▁call▁end｜>'), ("", [("get_weather", PARIS[:-3])])),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
     f'{{"a": 1\n```<｜tool▁call▁end｜>\n{V3_CALL}<｜tool▁calls▁end｜>', ("```", [("f", '{"a": 1\n'), WEATHER])),
    ("deepseek_v31", f"So.<｜tool▁calls▁begin｜>{V31_CALL}{V31_CALL}<｜tool▁calls▁end｜>", ("So.", [WEATHER] * 2)),
    ("deepseek_v31", f"<｜tool▁calls▁begin｜>\n{V31_CALL}\n<｜tool▁calls▁end｜>", ("", [WEATHER])),
    ("deepseek_v31", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜>", ("", [("function", "{}")])),
    ("deepseek_v31", "<｜tool▁calls▁begin｜> none", ("<｜tool▁calls▁begin｜> none", [])),
    ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>no",
     ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>no", [])),
    ("kimi_k2", f"So.<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>", ("So.", [WEATHER])),
    ("kimi_k2", "<|tool_calls_section_begin|> <|tool_call_begin|> functions.f:22 <|tool_call_argument_begin|> {\"a\": 1} "
     f"<|tool_call_end|> {KIMI_CALL} <|tool_calls_section_end|>", ("", [F, WEATHER])),
    ("kimi_k2", '<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>', ("", [F])),
    ("kimi_k2", "<|tool_call_begin|>functions.web-search.v2:1<|tool_call_argument_begin|>{}", ("", [("web-search.v2", "{}")])),
    ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": <|tool_call_end|>'
     f"{KIMI_CALL}<|tool_calls_section_end|>Done", ("Done", [("f", '{"a": '), WEATHER])),
    ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_end|>", ("<|tool_call_begin|>functions.f:0<|tool_call_end|>", [])),
    ("step3", f"So.<｜tool_calls_begin｜>\n{STEP_CALL}\n{STEP_CALL}\n<｜tool_calls_end｜>", ("So.", [WEATHER] * 2)),
    ("step3", STEP_CALL.replace("location", "days"), ("", [("get_weather", '{"days": "Paris"}')])),
    ("openai", f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS}", ("", [WEATHER])),
    ("openai", f"<|start|>assistant<|channel|>commentary to=functions.get_weather json<|message|>{PARIS}<|call|>",
     ("", [WEATHER])),
    ("openai", f" to=functions.get_weather<|channel|>commentary json<|message|>{PARIS}", ("", [WEATHER])),
    ("openai", f"<|start|>assistant to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{PARIS}",
     ("", [WEATHER])),
    ("openai", "<|channel|>commentary to=functions.f<|message|>{}<|call|>", ("", [("f", "{}")])),
    ("openai", "<|channel|>commentary<|message|>So.", ("<|channel|>commentary<|message|>So.", [])),
    # Gemma
    ("gemma4", 'So.<|tool_call>call:get_weather{location:<|"|>Paris<|"|>}<tool_call|>', ("So.", [WEATHER])),
    ("gemma4", '<|tool_call>call:f{a:1,b:-1.5,c:true,d:[<|"|>x<|"|>,{k:<|"|>"}\\n<"<|"|>}],e:{},<|"|>g<|"|>:None}<tool_call|>'
     "<|tool_call>call:f{}<tool_call|>",
     ("", [("f", '{"a": 1, "b": -1.5, "c": true, "d": ["x", {"k": "\\"}\\\\n<\\""}], "e": {}, "g": null}'), ("f", "{}")])),
    ("gemma4", '<|tool_call>call:f{a:<|"|>x<|', ("", [("f", '{"a": "x<|')])),
    ("gemma4", "<|tool_call>call:f{a:<b>}<tool_call|>", ("<b>}", [("f", '{"a": ')])),
    ("gemma4", "<|tool_call>call:f(a)<tool_call|>", ("<|tool_call>call:f(a)<tool_call|>", [])),
    ("functiongemma", "<start_function_call>call:get_weather{location:<escape>Paris<escape>}<end_function_call>",
     ("", [WEATHER])),
    # Others with tags of their own
    ("granite", f"<|tool_call|>[{CALL}, {F_CALL}]", ("", [WEATHER, F])),
    ("granite", f"<tool_call>[{CALL}]", ("", [WEATHER])),
    ("internlm", f"Hm.<|action_start|><|plugin|>\n{LLAMA_CALL}<|action_end|>", ("Hm.", [WEATHER])),
    ("jamba", f"<tool_calls>[\n{CALL},\n{F_CALL}\n]</tool_calls>", ("", [WEATHER, F])),
    ("phi4_mini_json", f"functools[{CALL}, {F_CALL}]", ("", [WEATHER, F])),
    ("jamba", f"<tool_calls>\n{CALL}\n{F_CALL}\n</tool_calls>", ("", [WEATHER, F])),
    ("granite-20b-fc", f"<function_call> {CALL}<function_call> {F_CALL}", ("", [WEATHER, F])),
    ("longcat", f"<longcat_tool_call>{CALL}</longcat_tool_call>", ("", [WEATHER])),
    ("lfm2", "<|tool_call_start|>[get_weather(location='Paris'), f(a=1)]<|tool_call_end|>So.", ("So.", [WEATHER, F])),
    ("phi4_mini_json", "functools.partial is for that", ("functools.partial is for that", [])),
    # No family
    ("json", CALL, ("", [WEATHER])),
    ("json", f"[{CALL}, {F_CALL}]", ("", [WEATHER, F])),
    ("json", f"```json\n{CALL}\n```", ("", [WEATHER])),
    ("json", f"```json\n{CALL}\n{F_CALL}\n```", ("", [WEATHER, F])),
    ("json", f"So:\n```\n{CALL}\n```\nOK?", ("So:OK?", [WEATHER])),
    ("json", f"I call it:\n{CALL}", ("I call it:", [WEATHER])),
    ("json", f"<tool_call>{CALL}</tool_call>", ("", [WEATHER])),
    ("json", '{"function": {"_name": "get_weather", "location": "Paris"}}', ("", [WEATHER])),
    ("json", '{"function": {"_name": "f"}}', ("", [("f", "{}")])),
    ("json", '{"function": {"_name": "f", "name":"x", "b" :[1, 2]}}', ("", [("f", '{"name": "x", "b": [1, 2]}')])),
    ("json", f'{{"type": "function", "function": {CALL}}}', ("", [WEATHER])),
    ("json", '```python\nprint({"name": 1})\n```\n', ('```python\nprint({"name": 1})\n```\n', [])),
    ("json", '```json\n{"name": "Bob"}\n```', ('```json\n{"name": "Bob"}\n```', [])),
    ("json", f'{{"people": [\n{CALL}\n]}}', (f'{{"people": [\n{CALL}\n]}}', [])),
    ("json", "[1] A book\n", ("[1] A book\n", [])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), GOLDEN)
def test_what_a_model_writes(name: str, text: str, message: Message) -> None:
    assert parse(tagged(name), text) == message
    assert parse(tagged(name), *text) == message


# What comes when


def told(parser: MessageParser, *pieces: str) -> list[MessageDelta]:
    return [parser.feed(piece) for piece in pieces]


def content(text: str) -> MessageDelta:
    return MessageDelta(text)


def call(index: int, name: str | None, arguments: str = "") -> MessageDelta:
    return MessageDelta(tool_calls=(ToolCallDelta(index, name, arguments),))


NOTHING = MessageDelta()


def test_content_comes_at_once_but_for_what_may_become_a_tag() -> None:
    parser = tagged("hermes")
    assert told(parser, "Hi", " there", " <too", "l", "s> ", "<tool_call") == [
        content("Hi"),
        content(" there"),
        NOTHING,
        NOTHING,
        content(" <tools>"),
        NOTHING,
    ]
    assert parser.finish() == content(" <tool_call")


def test_a_name_comes_before_its_arguments_and_these_in_pieces() -> None:
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
    assert told(tagged("hermes"), *pieces) == [
        NOTHING,
        NOTHING,
        call(0, "get_weather"),
        NOTHING,
        call(0, None, '{"loc'),
        call(0, None, 'ation": "Par'),
        call(0, None, 'is"}'),
        NOTHING,
    ]


def test_arguments_in_front_of_the_name_wait_for_it() -> None:
    pieces = ['<tool_call>{"arguments": {"a"', ': 1}, "name": "f', '"', "}"]
    assert told(tagged("hermes"), *pieces) == [NOTHING, NOTHING, call(0, "f", '{"a": 1}'), NOTHING]


def test_strings_in_tags_come_in_pieces() -> None:
    pieces = ["<function=f>\n<parameter=a>\n", "one\n", "two\n</para", "graph>", "\n</parameter>\n", "</function>"]
    assert told(tagged("qwen3_xml"), *pieces) == [
        call(0, "f", '{"a": "'),
        call(0, None, "one"),
        call(0, None, "\\ntwo"),
        call(0, None, "\\n</paragraph>"),
        call(0, None, '"'),
        call(0, None, "}"),
    ]


def test_calls_in_a_section_come_in_pieces() -> None:
    pieces = [
        "<|tool_calls_section_",
        "begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument",
        '_begin|>{"location": "Par',
        'is"}<|tool_call_',
        "end|><|tool_calls_section_end|>",
    ]
    assert told(tagged("kimi_k2"), *pieces) == [
        NOTHING,
        NOTHING,
        call(0, "get_weather", '{"location": "Par'),
        call(0, None, 'is"}'),
        NOTHING,
    ]


def test_strings_between_tokens_come_in_pieces() -> None:
    pieces = ["<|tool_call>call:f", "{a:<|", '"|>Pa', 'r"is<', '|"|', ">}<tool_call|>"]
    assert told(tagged("gemma4"), *pieces) == [
        NOTHING,
        call(0, "f", '{"a": '),
        call(0, None, '"Pa'),
        call(0, None, 'r\\"is'),
        NOTHING,
        call(0, None, '"}'),
    ]


def test_json_that_is_no_call_is_let_go_at_the_first_key() -> None:
    assert told(tagged("llama3_json"), '{"', "answer", '": ', "42", "}") == [
        NOTHING,
        NOTHING,
        NOTHING,
        content('{"answer": 42'),
        content("}"),
    ]


def test_several_calls_in_one_piece() -> None:
    assert tagged("mistral").feed(f"Wait[TOOL_CALLS][{CALL}, {F_CALL}]") == MessageDelta(
        "Wait", (ToolCallDelta(0, *WEATHER), ToolCallDelta(1, *F))
    )


# What a grammar has made


def test_plain_text_passes() -> None:
    parser = PlainParser()
    assert told(parser, "<tool_call>", CALL) == [content("<tool_call>"), content(CALL)]
    assert parser.finish() == NOTHING


def test_a_named_call_is_its_arguments() -> None:
    parser = NamedCallParser("get_weather")
    assert told(parser, '{"loc', 'ation": "Paris"}', "") == [
        call(0, "get_weather", '{"loc'),
        call(0, None, 'ation": "Paris"}'),
        NOTHING,
    ]
    assert parser.finish() == NOTHING


def test_a_named_call_without_text_is_still_one() -> None:
    assert NamedCallParser("f").finish() == call(0, "f")


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


# Random messages

FRAGMENTS = [
    *"{}[]():,;=<>\"'\\`|/ \n\t",
    "x", "é", "😀", "0", "-1.5", "f", "name", "a", "\\n", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\u12",
    '"name"', '"arguments"', '"parameters"', '"function"', '"_name"', '"f"', ": ", ", ", "null", "None",
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>",
    "<|tool_call|>", "<tool_calls>", "functools", "<|action_start|><|plugin|>", "<|action_end|>", "<function_calls>",
    "```json\n", "```", "<function=f>", "</function>", "<parameter=days>", "<parameter=location>", "</parameter>",
    '{"name": "f", "arguments": ', '{"name": "get_weather", "parameters": {"a": ', "f(", "[f(a=", "get_weather(days=",
    "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", '<invoke name="f">', '<parameter name="', '">', "</invoke>",
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


def cut(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def decoded(message: Message) -> tuple[str, list[tuple[str, Any]]]:
    text, calls = message
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize(("name", "render"), JSON_RENDERS)
@given(CALLS, WORDS, WORDS, st.data())
def test_json_calls_among_words(
    name: str, render: Render, calls: list[tuple[str, Arguments]], before: str, after: str, data: st.DataObject
) -> None:
    # Three backquotes are a fence, before calls as behind them, and a bracket begins a list without a tag.
    before, after = before.replace("```", "` `"), after.replace("`", "")
    if TOOL_FORMATS[name].bare:
        before = before.replace("[", "(")
    message = parse(tagged(name), *cut(f"{before}{render(calls)} {after}", data))
    assert decoded(message) == (before.rstrip() + after.lstrip(), calls)


@given(st.lists(st.tuples(NAMES, st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), VALUES, max_size=3)),
                min_size=1, max_size=3), st.data())  # fmt: skip
def test_python_calls(calls: list[tuple[str, Arguments]], data: st.DataObject) -> None:
    message = parse(tagged("pythonic"), *cut(python_list(calls), data))
    assert decoded(message) == ("", calls)


def glm(name: str, arguments: Arguments) -> str:
    pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def invoke(prefix: str, stated: str, name: str, arguments: Arguments) -> str:
    parameters = "".join(
        f'<{prefix}parameter name="{key}"{stated}>{value}</{prefix}parameter>\n' for key, value in arguments.items()
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
    assert decoded(parse(tagged(name), *cut(render(calls), data))) == ("", calls)


def has_no_quote(value: Any) -> bool:
    return '<|"|>' not in json.dumps(value).replace('\\"', '"') and "<escape>" not in json.dumps(value)


@pytest.mark.parametrize(
    ("name", "tag", "quote"),
    [
        ("gemma4", ("<|tool_call>", "<tool_call|>"), '<|"|>'),
        ("functiongemma", ("<start_function_call>", "<end_function_call>"), "<escape>"),
    ],
)
@given(CALLS.filter(has_no_quote), st.data())
def test_gemma_calls(
    name: str, tag: tuple[str, str], quote: str, calls: list[tuple[str, Arguments]], data: st.DataObject
) -> None:
    text = "".join(f"{tag[0]}call:{function}{gemma(quote, arguments)}{tag[1]}" for function, arguments in calls)
    assert decoded(parse(tagged(name), *cut(text, data))) == ("", calls)


@pytest.mark.parametrize(
    "parser", [*(lambda name=name: tagged(name) for name in TOOL_FORMATS), CallListParser], ids=[*TOOL_FORMATS, "list"]
)
@given(SOUP | st.text(), st.data())
def test_any_text_in_any_pieces(parser: Callable[[], MessageParser], text: str, data: st.DataObject) -> None:
    message = parse(parser(), text)
    assert parse(parser(), *cut(text, data)) == message
    assert parse(parser(), *text) == message
    if not message[1]:
        assert message[0] == text


# Time

LONG = 200_000


@pytest.mark.timeout(60)
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
def test_long_texts_cost_linear_time(name: str, text: str, calls: int, length: int) -> None:
    message = parse(tagged(name), *(text[start : start + 3] for start in range(0, len(text), 3)))
    assert len(message[1]) == calls
    assert len(message[0]) + sum(len(arguments) for _, arguments in message[1]) == length


@pytest.mark.parametrize("schema", [None, 5, {"type": 5}, {"type": [{}]}, {"anyOf": 5}, {"anyOf": [5, {"type": None}]}])
def test_a_schema_that_is_none_means_text(schema: object) -> None:
    parser = TaggedCallParser(TOOL_FORMATS["qwen3_xml"], {"f": {"properties": {"a": schema}}})
    assert parse(parser, "<function=f><parameter=a>1</parameter></function>") == ("", [("f", '{"a": "1"}')])


@pytest.mark.parametrize("text", ["[" * 100_000, "\ud800", "1" * 10_000])
def test_a_value_that_cannot_be_checked_is_text(text: str) -> None:
    parser = TaggedCallParser(TOOL_FORMATS["qwen3_xml"], SCHEMAS)
    message = parse(parser, f"<function=get_weather><parameter=days>{text}</parameter></function>")
    assert message[1][0][0] == "get_weather"
    assert json.loads(message[1][0][1], parse_int=str) == {"days": text}


# Which family


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>\n' }}{{ tool_call.arguments | tojson }}", "hermes"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=x>", "qwen3_xml"),
        ("{{- '[TOOL_CALLS] [' }}", "mistral"),
        ('{{- "<|python_tag|>" + tool_call.name + ".call(" }}', "llama3_json"),
        ("""Respond in the format {"name": function name, "parameters": dictionary of argument name""", "llama3_json"),
        ("{{- '<|python_start|>' }} or <|python_tag|>", "pythonic"),
        ("Respond in the format [func_name1(params_name1=params_value1, ...), func_name2(params)]", "pythonic"),
        ("{{ '<|tool_call|>' }}", "granite"),
        ("<|action_start|><|plugin|>", "internlm"),
        ("<tool_calls>[", "jamba"),
        ("<function_calls>\n", "olmo3"),
        ('functools[{"name": [function name]', "phi4_mini_json"),
        ("toolcall_begin_token = '<seed:tool_call>' ... \\n<function=example_function_name>", "seed_oss"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax_m2"),
        ('{%- set dsml_token = "｜DSML｜" -%}', "deepseek_v32"),
        ("{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name']", "deepseek_v3"),
        ("{{'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'", "deepseek_v31"),
        ("<|tool_calls_section_begin|>{%- for", "kimi_k2"),
        ("{{- '<｜tool_calls_begin｜>\\n' }}", "step3"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", "hermes"),
        ("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma4"),
        ("{{- '<start_function_call>call:' -}}", "functiongemma"),
        ('{{- "functions." + tool_call.name + "<|channel|>commentary " }}', "openai"),
        ('{{- "<|tool_call_start|>[" + (calls | join(", "))', "lfm2"),
        ("List of tools: <|tool_list_start|>[", "lfm2"),
        ("<longcat_tool_call>", "longcat"),
        ("<|function_call_library|>", "granite-20b-fc"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "json"),
        ("", "json"),
    ],
)
def test_a_template_tells_the_format(template: str, name: str) -> None:
    assert choose_tool_format(template, None).name == name


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *((name, name) for name in TOOL_FORMATS),
        ("qwen3_coder", "qwen3_xml"),
        ("llama4_pythonic", "pythonic"),
        ("llama4_json", "llama3_json"),
        ("xlam", "json"),
        ("granite4", "hermes"),
        ("glm45", "hermes"),
        ("ernie45", "hermes"),
        ("hunyuan_a13b", "jamba"),
        ("minimax", "jamba"),
        ("deepseek_v4", "deepseek_v32"),
        ("mimo", "qwen3_xml"),
    ],
)
def test_an_option_goes_before_the_template(option: str, name: str) -> None:
    assert choose_tool_format("[TOOL_CALLS]", option).name == name


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'nope'.*hermes.*llama3_json.*mistral.*qwen3_coder"):
        choose_tool_format("", "nope")
