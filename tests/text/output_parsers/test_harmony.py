"""Harmony, as gpt-oss writes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.text.output_parsers.harmony import HarmonyParser
from lmi_handlers.text.output_parsers.message import MessageDelta

PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>Four."
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'

Parts = tuple[str, str, list[tuple[str, str]]]
"""Reasoning, content, and the names and arguments of the calls."""


def parse(*pieces: str, prompt: str = PROMPT, calls: bool = True) -> Parts:
    parser, whole = HarmonyParser(prompt, calls=calls), MessageDelta()
    for piece in pieces:
        whole += parser.feed(piece)
    whole += parser.finish()
    found: list[tuple[str, str]] = []
    for delta in whole.tool_calls:
        if delta.name is not None:
            assert delta.index == len(found)
            found.append((delta.name, ""))
        found[delta.index] = (found[delta.index][0], found[delta.index][1] + delta.arguments)
    return whole.reasoning, whole.content, found


GOLDEN: list[tuple[str, Parts]] = [
    (ANALYSIS + NEXT + FINAL, ("Hm.", "Four.", [])),
    (FINAL, ("", "Four.", [])),
    (FINAL + "<|return|>", ("", "Four.", [])),
    ("<|channel|>analysis<|message|>Hm", ("Hm", "", [])),
    (ANALYSIS + NEXT + "<|channel|>final <|constrain|>json<|message|>{}", ("Hm.", "{}", [])),
    (ANALYSIS + NEXT + ANALYSIS + NEXT + FINAL, ("Hm.\nHm.", "Four.", [])),
    ("<|channel|>analysis<|message|>Hm." + FINAL, ("Hm.", "Four.", [])),
    (ANALYSIS + NEXT + CALL, ("Hm.", "", [("f", '{"a": 1}')])),
    (CALL + "<|call|>" + NEXT + CALL.replace("f ", "g "), ("", "", [("f", '{"a": 1}'), ("g", '{"a": 1}')])),
    (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', ("", "", [("f", '{"a": 1}')])),
    (ANALYSIS + "assistant to=functions.f<|channel|>commentary<|message|>{}", ("Hm.", "", [("f", "{}")])),
    ("<|channel|>commentary to=other.tool<|message|>{}", ("", "", [("other.tool", "{}")])),
    ("<|channel|>commentary<|message|>I look.<|end|>" + NEXT + CALL, ("", "I look.", [("f", '{"a": 1}')])),
    ("<|channel|>other<|message|>Well.<|end|>" + NEXT + FINAL, ("", "Well.\nFour.", [])),
    ("Well, " + ANALYSIS + NEXT + FINAL, ("Hm.", "Well, \nFour.", [])),
    ("Just text", ("", "Just text", [])),
    ("a < b <| c <|end", ("", "a < b <| c <|end", [])),
    (ANALYSIS + "\n" + NEXT + FINAL, ("Hm.", "Four.", [])),
    ("<|channel|>final", ("", "", [])),
    ("to", ("", "to", [])),
    ("assistants help", ("", "assistants help", [])),
    ("", ("", "", [])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), GOLDEN)
def test_answers(text: str, expected: Parts) -> None:
    assert parse(text) == expected
    assert parse(*text) == expected


def test_without_tools_the_arguments_are_content() -> None:
    assert parse(ANALYSIS, NEXT, CALL, calls=False) == ("Hm.", '{"a": 1}', [])


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (PROMPT + "<|channel|>final<|message|>Three, ", ("", "four", [])),
        (PROMPT + "<|channel|>analysis<|message|>", ("four", "", [])),
        (PROMPT, ("", "four", [])),
        ("Hi", ("", "four", [])),
    ],
)
def test_the_prompt_may_have_begun_the_message(prompt: str, expected: Parts) -> None:
    assert parse("four", prompt=prompt) == expected


def test_text_is_returned_at_once() -> None:
    parser = HarmonyParser(PROMPT, calls=True)
    assert parser.feed("<|channel|>analysis<|message|>Hm") == MessageDelta(reasoning="Hm")
    assert parser.feed(" <|e") == MessageDelta(reasoning=" ")
    assert parser.feed("nd|>" + NEXT + FINAL) == MessageDelta("Four.")
    assert parser.feed(" Five") == MessageDelta(" Five")


_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_WORDS = ("assistant", "to=", "analysis", "final", "commentary", "functions.f", " ", "json", "<|", "x", "\n", "<")
_PIECES = st.sampled_from((*_MARKS, *_WORDS))


@given(st.lists(_PIECES, max_size=30).map("".join), st.data())
def test_the_result_does_not_depend_on_how_the_text_is_split(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(*pieces) == parse(text) == parse(*text)


def test_long_answers_take_linear_time() -> None:
    text = "<|start|>" + "to=" * 100_000 + "<|message|>" + "<" * 100_000
    assert parse(*text, calls=False)[1] == "<" * 100_000
    assert parse("to=" * 100_000, calls=False)[1] == "to=" * 100_000
