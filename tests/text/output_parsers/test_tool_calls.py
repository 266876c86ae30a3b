"""Tool calls as each family of models writes them: complete, incomplete and malformed."""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import json

import pytest
from parsed_messages import (
    CALL,
    DSML_CALL,
    F_CALL,
    INVOKE,
    KIMI_CALL,
    LLAMA_CALL,
    PARIS,
    SCHEMAS,
    STEP_CALL,
    V3_CALL,
    V31_CALL,
    WEATHER,
    XML_CALL,
    F,
    Message,
    parse,
    tagged_call_parser,
)

from lmi_handlers.text.output_parsers.tool_calls import TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS


def m3(text: str) -> str:
    """The text with MiniMax M3's mark of tags, for which `~` stands."""
    return text.replace("~", "]<]minimax[>[")


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
    # Too many or too few braces, or the text ends early
    ("hermes", f"<tool_call>\n{F_CALL}}}\n</tool_call>", ("", [F])),
    ("hermes", f"<tool_call>\n{F_CALL}}}", ("", [F])),
    ("hermes", f"<tool_call>\n{F_CALL[:-1]}\n</tool_call>\nDone", ("Done", [F])),
    ("hermes", f"<tool_call>\n{F_CALL[:-2]}\n</tool_call>\nDone", ("Done", [("f", '{"a": 1\n')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x', ("", [("f", '{"a": "x')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": }</tool_call>', ("", [("f", "")])),
    ("hermes", '<tool_call>{"name": "f", "argum', ("", [("f", "")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": <oops>}}</tool_call> Done',
     ("<oops>}}Done", [("f", '{"a": ')])),
    # Not a call
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
    ("qwen3_xml", "<tool_call>\n<function=get_weather>\n<parameter=location>\nParis\n</parameter>\n</tool_call>\nSo.",
     ("So.", [WEATHER])),
    ("qwen3_xml", "<tool_call>\n<function=f>\n</tool_call>", ("", [("f", "{}")])),
    ("qwen3_xml", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n", ("", [("f", '{"a": "x"')])),
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
    # Tags, with types from the schema
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
    ("dots", f"So.\n<dots_function_call>\n{INVOKE}\n{INVOKE}\n</dots_function_call>", ("So.", [WEATHER] * 2)),
    ("dots", '<dots_function_call>{"name": "f", "arguments": {}}</dots_function_call>', ("", [("f", "{}")])),
    ("gigachat3", 'So.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {}}', ("So.", [("f", "{}")])),
    ("gigachat3", 'So.<|function_call|>{"name": "f", "arguments": {}}', ("So.", [("f", "{}")])),
    ("gigachat3", "So.<|message_sep|>\n\nNo.", ("So.<|message_sep|>\n\nNo.", [])),
    ("minimax_m2", f"So.\n{INVOKE}\n</minimax:tool_call>", ("So.", [WEATHER])),
    ("minimax_m2", '<minimax:tool_call><invoke name="get_weather"><parameter name="days">3</parameter><parameter name="note">'
     "\n7 < 8\n</parameter></invoke></minimax:tool_call>", ("", [("get_weather", '{"days": 3, "note": "\\n7 < 8\\n"}')])),
    ("minimax_m2", '<minimax:tool_call><invoke name="g"></invoke></minimax:tool_call>', ("", [("g", "{}")])),
    ("minimax_m2", '<invoke name="g"></invoke>', ('<invoke name="g"></invoke>', [])),
    ("minimax_m2", "<minimax:tool_call><b>no</b></minimax:tool_call>", ("<minimax:tool_call><b>no</b></minimax:tool_call>", [])),
    ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="a" b>1</parameter></invoke></minimax:tool_call>',
     ('" b>1</parameter></invoke>', [("f", "")])),
    # DeepSeek V3.2 marks which values are strings
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
    ("cohere_command3", "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": "
     f"{PARIS}}},\n    {{\"tool_call_id\": \"1\", \"tool_name\": \"f\", \"parameters\": {{}}}}\n]<|END_ACTION|>",
     ("", [WEATHER, ("f", "{}")])),
    ("apertus", f'<|tools_prefix|>[{{"get_weather": {PARIS}}}, {{"f": {{}}, "g": 1}}]<|tools_suffix|>So.',
     ("So.", [WEATHER, ("f", "{}")])),
    ("apertus", "<|tools_prefix|>[{}]<|tools_suffix|>", ("<|tools_prefix|>[{}]<|tools_suffix|>", [])),
    ("deepseek_v32", DSML_CALL.join(["<｜DSML｜toolcalls>", "</｜DSML｜tool_calls>"]), ("", [WEATHER])),
    ("minicpm5", 'So.<function name="get_weather"><param name="location">a &lt; &quot;b&amp;lt;</param></function>',
     ("So.", [("get_weather", '{"location": "a < \\"b&lt;"}')])),
    ("minicpm5", '<function name="f"><param name="a"><![CDATA[</param> ]]></param></function>',
     ("", [("f", '{"a": "</param> "}')])),
    ("minicpm5", '<function name="other"></function>', ('<function name="other"></function>', [])),
    ("k2_horizon", "<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>a</ifm|arg_key> <ifm|arg_type>array[string]</ifm|arg_type>\n"
     "<ifm|arg_value>[1]</ifm|arg_value></ifm|tool_call></ifm|tool_calls>", ("", [("f", '{"a": [1]}')])),
    ("k2_horizon", "<ifm|tool_call>f<ifm|arg_key>a</ifm|arg_key><ifm|arg_type>any</ifm|arg_type><ifm|arg_value>1</ifm|arg_value>",
     ("", [("f", '{"a": "1"}')])),
    ("k2_horizon", "<ifm|tool_call>f<ifm|arg_key>a</ifm|arg_key><ifm|arg_type>int", ("", [("f", "")])),
    ("k2_horizon", f"<ifm|tool_calls><ifm|tool_call>{CALL}</ifm|tool_call></ifm|tool_calls>", ("", [WEATHER])),
    ("minimax_m3", m3('~<tool_call>~<invoke name="get_weather">~<location>Paris~</location>~</invoke>~</tool_call>So.'),
     ("So.", [WEATHER])),
    ("minimax_m3", m3("~<tool_call>~<invoke name='f'>~<a>~<b>1~</b> c ~<b>2~</b>~</a>~</invoke>\n~<invoke name=f>~</invoke>"),
     ("", [("f", '{"a": {"b": ["1", "2"], "$text": " c "}}'), ("f", "{}")])),
    ("minimax_m3", m3('~<tool_call>~<invoke name="get_weather">~<days>3~</days>~<place>~</place>~</invoke>~</tool_call>'),
     ("", [("get_weather", '{"days": 3, "place": {}}')])),
    ("minimax_m3", m3('~<tool_call>~<invoke name="f">~<a>1~</b>'), ("", [("f", "")])),
    ("minimax_m3", m3(f'~<tool_call>~<invoke name="f">~<{"a" * 1024}>1~</{"a" * 1024}>~</invoke>~</tool_call>'),
     ("", [("f", f'{{"{"a" * 1024}": "1"}}')])),
    ("minimax_m3", m3(f'~<tool_call>~<invoke name="f">~<{"a" * 1025}>1~</{"a" * 1025}>~</invoke>~</tool_call>'),
     (m3(f'1~</{"a" * 1025}>~</invoke>'), [("f", "")])),
    ("hy_v3", "<tool_calls><tool_call>new<tool_sep></tool_call></tool_calls>", ("", [("new", "{}")])),
    ("hy_v3", "<tool_call>new</tool_call>", ("<tool_call>new</tool_call>", [])),
    ("functiongemma", "<start_function_call>call:get_weather{location:<escape>Paris<escape>}<end_function_call>",
     ("", [WEATHER])),
    # Other families with their own tags
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
    # Unknown families
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
def test_calls_as_models_write_them(name: str, text: str, message: Message) -> None:
    assert parse(tagged_call_parser(name), text) == message
    assert parse(tagged_call_parser(name), *text) == message


@pytest.mark.parametrize("schema", [None, 5, {"type": 5}, {"type": [{}]}, {"anyOf": 5}, {"anyOf": [5, {"type": None}]}])
def test_an_invalid_schema_makes_the_value_a_string(schema: object) -> None:
    parser = TaggedCallParser(TOOL_FORMATS["qwen3_xml"], {"f": {"properties": {"a": schema}}})
    assert parse(parser, "<function=f><parameter=a>1</parameter></function>") == ("", [("f", '{"a": "1"}')])


@pytest.mark.parametrize("text", ["[" * 100_000, "\ud800", "1" * 10_000])
def test_a_value_that_cannot_be_decoded_is_a_string(text: str) -> None:
    parser = TaggedCallParser(TOOL_FORMATS["qwen3_xml"], SCHEMAS)
    message = parse(parser, f"<function=get_weather><parameter=days>{text}</parameter></function>")
    assert message[1][0][0] == "get_weather"
    assert json.loads(message[1][0][1], parse_int=str) == {"days": text}


@pytest.mark.parametrize("name", ["github/list", "mcp:get", "a/b:c", "a.b", "a/b"])
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("mistral", '[TOOL_CALLS]NAME[ARGS]{"a": 1}'),
        ("mistral", '[TOOL_CALLS]NAME[CALL_ID]0a1b2c3d4[ARGS]{"a": 1}'),
        ("hermes", "<tool_call>NAME\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        ("hermes", '<tool_call>{"name": "NAME", "arguments": {"a": 1}}</tool_call>'),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>"
            '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
        ),
        (
            "deepseek_v31",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        ("gemma4", "<|tool_call>call:NAME{a:1}<tool_call|>"),
        ("qwen3_xml", "<tool_call><function=NAME><parameter=a>1</parameter></function></tool_call>"),
        ("pythonic", "[NAME(a=1)]"),
    ],
)
def test_all_names_that_tools_may_have_are_read(name: str, family: str, text: str) -> None:
    integer = {"properties": {"a": {"type": "integer"}}}
    schemas: dict[str, dict[str, object]] = {"a/b": {**integer}, name: {**integer}, "a": {}}
    for pieces in ((text.replace("NAME", name),), text.replace("NAME", name)):
        assert parse(TaggedCallParser(TOOL_FORMATS[family], schemas), *pieces) == ("", [(name, '{"a": 1}')])
