"""The reasoning of each model family is separated from its answer, however the text is split and wherever it ends."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_messages import cut

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.output_parsers.message import MessageDelta, PlainParser
from lmi_handlers.text.output_parsers.reasoning import (
    REASONING_FORMATS,
    ReasoningFormat,
    ReasoningParser,
    choose_reasoning_format,
    reasoning_format,
    with_reasoning,
)
from lmi_handlers.text.output_parsers.tool_calls import TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS

PROMPT = "<|user|>What is <think>?<|assistant|>\n"
"""The model starts its reasoning itself. A mark that the user writes does not start it."""

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def parser(name: str = "qwen3", prompt: str = PROMPT) -> ReasoningParser:
    return ReasoningParser(reasoning_format(name), prompt, PlainParser())


def join(deltas: Iterable[MessageDelta]) -> MessageDelta:
    whole = MessageDelta()
    for delta in deltas:
        whole += delta
    return whole


def parse(reader: ReasoningParser, *pieces: str) -> tuple[str, str]:
    """Return the reasoning and the answer. Checks that no reasoning follows the answer."""
    deltas = [*map(reader.feed, pieces), reader.finish()]
    answered = False
    for delta in deltas:
        assert not (answered and delta.reasoning)
        answered = answered or bool(delta.content)
    whole = join(deltas)
    return whole.reasoning, whole.content


@pytest.mark.parametrize(
    "form",
    [form for form in REASONING_FORMATS.values() if form.name != "minimax_m2_append_think"],
    ids=lambda form: form.name,
)
def test_a_forced_end_leads_to_the_answer(form: ReasoningFormat) -> None:
    end = form.forced_end or form.ends[0]
    reader = with_reasoning(form, "<|start|>assistant" if form.forced_end else PROMPT, PlainParser())
    deltas = [reader.feed(f"{form.begins[0]}Hm, I{end}Four."), reader.finish()]
    assert (join(deltas).reasoning, join(deltas).content) == ("Hm, I", "Four.")


GOLDEN = [
    ("qwen3", PROMPT, "<think>\nHm.\n\nSo?\n</think>\n\nFour.", ("Hm.\n\nSo?", "Four.")),
    ("qwen3", PROMPT, "<think></think>Four.", ("", "Four.")),
    ("qwen3", PROMPT, "<think>\n\n</think>\n\nFour.\n", ("", "Four.\n")),
    ("qwen3", PROMPT, "Four. <think>Hm.</think>", ("", "Four. <think>Hm.</think>")),
    ("qwen3", PROMPT, "\n Four.\n", ("", "\n Four.\n")),
    ("qwen3", PROMPT, " \n", ("", " \n")),
    ("qwen3", PROMPT, " <thin", ("", " <thin")),
    ("qwen3", PROMPT, "", ("", "")),
    ("qwen3", PROMPT, "<think>Hm. 1 </ 2 </thin", ("Hm. 1 </ 2 </thin", "")),
    ("qwen3", PROMPT, "<think>Hm. </think>", ("Hm.", "")),
    ("qwen3", PROMPT, "<think>a</think>b</think>c<think>d</think>", ("a", "b</think>c<think>d</think>")),
    ("k2_horizon", f"{PROMPT}<ifm|think_fast>", "Hm.</ifm|think_fast>\nFour.", ("Hm.", "Four.")),
    ("k2_horizon", PROMPT, "<ifm|think>Hm.\n<ifm|tool_calls>..", ("Hm.", "<ifm|tool_calls>..")),
    ("k2_horizon", PROMPT, "<ifm|think>Hm.<ifm|tool", ("Hm.<ifm|tool", "")),
    ("plamo3", PROMPT, "<|plamo:begin_think:plamo|>Hm.<|plamo:begin_tool_requests:plamo|>..",
     ("Hm.", "<|plamo:begin_tool_requests:plamo|>..")),
    ("hy_v4", PROMPT, "<think>Hm.</think>Four.", ("Hm.", "Four.")),
    ("kimi_k3", f"{PROMPT}<|open|>think<|sep|>",
     "Hm.<|close|>think<|sep|><|open|>response<|sep|>Four.<|close|>response<|sep|><|close|>message<|sep|>", ("Hm.", "Four.")),
    ("kimi_k3", f"{PROMPT}<|open|>response<|sep|>", "Four.<|close|>response<|sep|><|close|>message<|sep|>", ("", "Four.")),
    # The prompt starts or ends the reasoning
    ("deepseek_r1", f"{PROMPT}<think>\n", "Hm.\n</think>\n\nFour.", ("Hm.", "Four.")),
    ("deepseek_r1", f"{PROMPT}<think>", "<think>\nHm.</think>Four.", ("Hm.", "Four.")),
    ("deepseek_r1", f"{PROMPT}<think>\n", "\nHm, still", ("Hm, still", "")),
    ("deepseek_r1", f"{PROMPT}<think>\n", "</think>Four.", ("", "Four.")),
    ("qwen3", f"{PROMPT}<think>\n\n</think>\n\n", "Four.", ("", "Four.")),
    ("glm45", f"{PROMPT}<think></think>", "\nFour.", ("", "\nFour.")),
    ("mistral", PROMPT, "[THINK]Hm.[/THINK]Four.", ("Hm.", "Four.")),
    ("mistral", PROMPT, "<think>Hm.</think>Four.", ("Hm.", "Four.")),
    ("seed_oss", PROMPT, "<seed:think>Hm.</seed:think>Four.", ("Hm.", "Four.")),
    ("minimax_m3", PROMPT, "<mm:think>Hm.</mm:think>Four.", ("Hm.", "Four.")),
    ("plamo3", PROMPT, "<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|>Four.", ("Hm.", "Four.")),
    ("gemma4", PROMPT, "<|channel>thought\nHm.\n<channel|>Four.", ("Hm.", "Four.")),
    ("granite", PROMPT, "Here is my thought process: Here I am: Hm.\nHere is my response: Four.", ("Here I am: Hm.", "Four.")),
    ("granite", PROMPT, "Here's my thought process:\n\nHm.\n\nHere's my response:\n\nFour.", ("Hm.", "Four.")),
    ("granite", PROMPT, "Here's my number: Four.", ("", "Here's my number: Four.")),
    # Families that also mark the answer
    ("hunyuan_a13b", PROMPT, "<think>\nHm.\n</think>\n<answer>\nFour.\n</answer>", ("Hm.", "Four.")),
    ("hunyuan_a13b", f"{PROMPT}<think>\n\n</think>\n", "<answer>\nFour.\n</answer>", ("", "Four.")),
    ("hunyuan_a13b", PROMPT, "<think>\nHm.\n</think>\n<answer>\nFour. </ans", ("Hm.", "Four. </ans")),
    ("hunyuan_a13b", PROMPT, "<think>\nHm.\n</think>\nFour.", ("Hm.", "Four.")),
    ("ernie45", f"{PROMPT}<think>\n", "Hm.\n</think>\n\n<response>\nFour.\n</response>\n", ("Hm.", "Four.")),
    (
        "cohere_command3",
        PROMPT,
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Four.<|END_RESPONSE|>",
        ("Hm.", "Four."),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "prompt", "text", "expected"), GOLDEN)
def test_reasoning_as_models_write_it(name: str, prompt: str, text: str, expected: tuple[str, str]) -> None:
    assert parse(parser(name, prompt), text) == expected
    assert parse(parser(name, prompt), *text) == expected


def test_reasoning_is_returned_at_once_except_the_start_of_a_possible_end_mark() -> None:
    reader = parser()
    pieces = ("<thi", "nk>", "\n", "Hm", ", so", " ", "it is </", "b> ", "</think", ">\n", "\nFour", ". ", "")
    assert [reader.feed(piece) for piece in pieces] == [
        *[MessageDelta()] * 3,
        MessageDelta(reasoning="Hm"),
        MessageDelta(reasoning=", so"),
        MessageDelta(),
        MessageDelta(reasoning=" it is"),
        MessageDelta(reasoning=" </b>"),
        *[MessageDelta()] * 2,
        MessageDelta("Four"),
        MessageDelta(". "),
        MessageDelta(),
    ]
    assert reader.finish() == MessageDelta()


def test_tool_calls_are_recognised_only_after_the_reasoning() -> None:
    text = f"<think>I might write {CALL} now.</think>\n\nOne moment.\n{CALL}"
    for pieces in ((text,), tuple(text)):
        tools = TaggedCallParser(TOOL_FORMATS["hermes"], {"f": {}})
        reader = ReasoningParser(REASONING_FORMATS["deepseek_r1"], PROMPT, tools)
        whole = join([*map(reader.feed, pieces), reader.finish()])
        assert whole.reasoning == f"I might write {CALL} now."
        assert whole.content == "One moment."
        assert [(call.index, call.name) for call in whole.tool_calls if call.name] == [(0, "f")]
        assert "".join(call.arguments for call in whole.tool_calls) == '{"a": 1}'


def read_with_tools(name: str, tools: str, *pieces: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the reasoning, the content and the calls of a text whose reasoning the prompt has begun."""
    form = reasoning_format(name)
    reader = ReasoningParser(form, PROMPT + form.begins[0], TaggedCallParser(TOOL_FORMATS[tools], {"f": {}}))
    whole = join([*map(reader.feed, pieces), reader.finish()])
    names = [call.name for call in whole.tool_calls if call.name]
    arguments = ["".join(call.arguments for call in whole.tool_calls if call.index == i) for i in range(len(names))]
    return whole.reasoning, whole.content, list(zip(names, arguments, strict=True))


@pytest.mark.parametrize(
    ("name", "tools", "call"),
    [
        ("qwen3", "hermes", CALL),
        ("qwen3", "qwen3_xml", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "hermes", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        (
            "kimi_k2",
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
        ),
        (
            "minimax_m2",
            "minimax_m2",
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
        ),
        ("mistral", "mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}'),
        ("gemma4", "gemma4", "<|tool_call>call:f{a:1}<tool_call|>"),
    ],
)
def test_calls_in_reasoning_that_never_ends(name: str, tools: str, call: str) -> None:
    """Some models call a function without ending their thoughts. vLLM ends the reasoning there."""
    for pieces in ((f"Hm.\n{call}",), tuple(f"Hm.\n{call}")):
        reasoning, content, [(function, arguments)] = read_with_tools(name, tools, *pieces)
        assert (reasoning, content, function) == ("Hm.", "", "f")
        assert json.loads(arguments)["a"] in (1, "1")  # no schema says which
    told = f"I might write {call}."
    end = reasoning_format(name).ends[0]
    assert read_with_tools(name, tools, f"{told}{end}Hello.") == (told, "Hello.", [])


@pytest.mark.parametrize(
    "text", ["Use <tool_call> tags", "<tool_call>", "<tool_call>\n{", "a <tool_call></tool_call> b"]
)
def test_the_mark_of_a_call_alone_stays_in_the_reasoning(text: str) -> None:
    assert read_with_tools("qwen3", "hermes", *text) == (text, "", [])


CALLS_AND_MARKS = st.lists(
    st.sampled_from([CALL, "<tool_call>", "</tool_call>", "</think>", "<", "</", "Hm", " ", "\n", '{"name": "f"}']),
    max_size=8,
).map("".join)


@given(CALLS_AND_MARKS, st.data())
def test_calls_and_reasoning_do_not_depend_on_how_the_text_is_split(text: str, data: st.DataObject) -> None:
    whole = read_with_tools("qwen3", "hermes", text)
    assert read_with_tools("qwen3", "hermes", *cut(text, data)) == whole
    assert read_with_tools("qwen3", "hermes", *text) == whole


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MARKED = [name for name in REASONING_FORMATS if name not in ("openai_gptoss", "minimax_m2_append_think")]
"""All but harmony (test_harmony.py) and the one that leaves the reasoning where it is: they have parsers of their own."""

MARKS = sorted(
    {
        mark
        for form in REASONING_FORMATS.values()
        for marks in (form.begins, form.ends, form.answer_begins, form.answer_ends)
        for mark in marks
    }
)
SOUP = st.lists(
    st.sampled_from([*MARKS, *(mark[:3] for mark in MARKS), " ", "\n", "Hm", "<", "Here"]), max_size=12
).map("".join)


@pytest.mark.parametrize("name", MARKED)
@settings(max_examples=20)
@given(SOUP | st.text(), st.booleans(), st.data())
def test_the_result_does_not_depend_on_how_the_text_is_split(
    name: str, text: str, begun: bool, data: st.DataObject
) -> None:
    prompt = PROMPT + (REASONING_FORMATS[name].begins[0] + "\n" if begun else "")
    whole = parse(parser(name, prompt), text)
    assert parse(parser(name, prompt), *cut(text, data)) == whole
    assert parse(parser(name, prompt), *text) == whole
    if not begun and not text.lstrip().startswith(
        (*REASONING_FORMATS[name].begins, *REASONING_FORMATS[name].answer_begins)
    ):
        assert whole == ("", text)


@pytest.mark.parametrize("name", MARKED)
@settings(max_examples=20)
@given(WORDS, WORDS, st.booleans(), st.data())
def test_random_reasoning_and_answers_are_returned(
    name: str, reasoning: str, answer: str, begun: bool, data: st.DataObject
) -> None:
    form = REASONING_FORMATS[name]
    prompt = PROMPT + (form.begins[0] if begun else "")
    marks = [*form.begins, *form.ends, *form.answer_begins, *form.answer_ends]
    if any(mark in reasoning + answer for mark in marks):
        return
    around = [("", ""), *itertools.product(form.answer_begins, form.answer_ends or ("",))]
    before, after = data.draw(st.sampled_from(around))
    text = f"{'' if begun else form.begins[0]}\n{reasoning}\n{form.ends[0]}\n\n{before}\n{answer}{after}"
    parsed_reasoning, parsed_answer = parse(parser(name, prompt), *cut(text, data))
    assert parsed_reasoning == reasoning.strip()
    assert parsed_answer.rstrip() == answer.strip()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["word ", " ", "</thin", "<", "Here is my "])
def test_long_reasoning_is_parsed_in_linear_time(text: str) -> None:
    for name in ("deepseek_r1", "granite"):
        whole = text * (60_000 // len(text))
        pieces = (whole[start : start + 3] for start in range(0, len(whole), 3))
        assert parse(parser(name, REASONING_FORMATS[name].begins[0]), *pieces) == (whole.strip(), "")


def test_vllms_names_are_accepted() -> None:
    assert {name: reasoning_format(name).name for name in ("qwen3", "glm45", "kimi_k2", "cohere_command4", "granite")} == {
        "qwen3": "deepseek_r1",
        "glm45": "deepseek_r1",
        "kimi_k2": "deepseek_r1",
        "cohere_command4": "cohere_command3",
        "granite": "granite",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"option.reasoning_parser 'nope'; known: .*deepseek_r1.*qwen3"):
        reasoning_format("nope")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|Assistant|><think>\\n' }}", "deepseek_r1"),
        ("{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}", "deepseek_r1"),
        ("{{ '<think>\n\n</think>\n' }} <answer>\n", "hunyuan_a13b"),
        ("[THINK]{{ thoughts }}[/THINK]", "mistral"),
        ("Write your thoughts after 'Here is my thought process:'", "granite"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "openai_gptoss"),
        ("<|START_THINKING|>", "cohere_command3"),
        ("<seed:think>", "seed_oss"),
    ],
)
def test_the_format_is_detected_from_the_chat_template(template: str, name: str) -> None:
    chosen = choose_reasoning_format(template, None, enabled=True)
    assert chosen is not None
    assert chosen.name == name
    assert choose_reasoning_format(template, None, enabled=None) == (chosen if name == "openai_gptoss" else None)
    assert choose_reasoning_format(template, None, enabled=False) is None


def test_the_option_takes_precedence_over_the_template() -> None:
    assert choose_reasoning_format("<think>", "granite", enabled=None) is REASONING_FORMATS["granite"]
    assert choose_reasoning_format("<think>", "granite", enabled=True) is REASONING_FORMATS["granite"]
    assert choose_reasoning_format("<think>", "granite", enabled=False) is None
    with pytest.raises(ConfigError, match=r"set option.reasoning_parser \(.*qwen3"):
        choose_reasoning_format("{{ messages }}", None, enabled=True)


def test_hunyuans_marks_have_the_suffix_of_the_template() -> None:
    chosen = choose_reasoning_format("{{ '<think:6124c78e>' }}", "hy_v4", enabled=None)
    assert chosen is not None
    assert (chosen.begins, chosen.ends) == (("<think:6124c78e>",), ("</think:6124c78e>",))


def test_reasoning_may_stay_in_the_content() -> None:
    form = reasoning_format("minimax_m2_append_think")
    for prompt, content in ((f"{PROMPT}<think>\n", "<think>Hm.</think>So."), (PROMPT, "Hm.</think>So.")):
        reader = with_reasoning(form, prompt, TaggedCallParser(TOOL_FORMATS["hermes"], {"f": {}}))
        whole = join([*map(reader.feed, f"Hm.</think>So.{CALL}"), reader.finish()])
        assert (whole.reasoning, whole.content) == ("", content)
        assert [call.name for call in whole.tool_calls if call.name] == ["f"]
    reader = with_reasoning(form, f"{PROMPT}<think>", PlainParser())
    assert reader.finish() == MessageDelta("<think>")
