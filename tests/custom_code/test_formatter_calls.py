"""How formatters of each of LMI's generations are called, and what is made of what they return. No server runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import raises
from hypothesis import example, given
from hypothesis import strategies as st

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.custom_code.formatting.input_calls import InputFormatter
from lmi_handlers.custom_code.formatting.messages import Begin, OutputToken, Tokens
from lmi_handlers.custom_code.formatting.records import ResponseCall
from lmi_handlers.custom_code.formatting.signatures import InputKind, OutputKind, input_kind, output_kind
from lmi_handlers.custom_code.formatting.token_answers import TokenAnswer, call_legacy, call_output
from lmi_handlers.custom_code.formatting.tokenizer import LazyTokenizer
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.request_io import (
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
)

TOKENIZER = LazyTokenizer(Path("nowhere"))


class OwnInput(TextInput):
    """A request with a field of its own."""

    trace: str


def as_it_is(value: Any) -> Any:
    return value


def answer(call: Any, *, samples: int = 1, context: bytes = b"", **parameters: Any) -> TokenAnswer:
    begin = Begin(7, "", "r1", [("prompt", [1, 2])], samples, json.dumps(parameters).encode(), False, context)
    return TokenAnswer(begin, call, TOKENIZER)


def tokens(text: str, reason: str | None = None, index: int = 0) -> Tokens:
    return Tokens(7, index, [OutputToken(ord(char), char, -0.5) for char in text], reason)


def legacy(token: Token, first: bool, last: bool, details: dict[str, Any], text: str, request_id: int) -> str:
    return json.dumps([token.text, first, last, details, text, request_id]) + "\n"


def test_the_first_generation_gets_six_arguments() -> None:
    of = answer(call_legacy(legacy, as_it_is), return_full_text=True)
    assert of.feed(tokens("a")) == b'["a", true, false, {}, "", 7]\n'
    assert not of.ended
    assert of.feed(tokens("bc", "length")) == (
        b'["b", false, false, {}, "", 7]\n["c", false, true, {}, "promptabc", 7]\n'
    )
    assert of.ended


def test_the_first_generation_gets_details_if_the_request_asks_for_them() -> None:
    of = answer(call_legacy(legacy, as_it_is), details=True)
    (line,) = of.feed(tokens("a", "eos_token")).splitlines()
    assert json.loads(line)[3] == {
        "finish_reason": "eos_token",
        "tokens": [{"id": 97, "text": "a", "log_prob": -0.5}],
        "generated_tokens": 1,
        "inputs": "prompt",
        "parameters": {"details": True},
        "prompt_tokens": 2,
    }


def four(output: TextGenerationOutput) -> str:
    token, index, first, last = output.sequences[output.best_sequence_index].get_next_token()
    return f"{token and token.text}{index}{first:d}{last:d}{output.finished:d} "


def three(output: RequestOutput) -> str:
    assert isinstance(output, TextGenerationOutput)
    token, first, last = output.sequences[0].get_next_token()
    return f"{token and token.text}{first:d}{last:d}{output.finished:d} "


def packed(output: TextGenerationOutput) -> str:
    return str(len(output.sequences[0].get_next_token()))


@pytest.mark.parametrize(
    ("function", "written"),
    [(four, b"a0100 b1000 c2011 "), (three, b"a100 b000 c011 "), (packed, b"444")],
)
def test_next_token_has_as_many_values_as_are_unpacked(function: Callable[..., Any], written: bytes) -> None:
    assert answer(call_output(function, as_it_is)).feed(tokens("abc", "length")) == written


def test_after_the_last_token_there_is_none() -> None:
    sequence = Sequence()
    token, first, last = sequence.get_next_token()
    nothing, index, _, _ = sequence.get_next_token()
    assert (token, first, last, nothing, index) == (None, False, False, None, 0)


def test_an_answer_that_ends_without_a_token_has_a_placeholder() -> None:
    assert answer(call_output(four, as_it_is)).feed(tokens("", "abort")) == b"0111 "


def test_the_best_sequence_is_known_at_the_end() -> None:
    def best(output: TextGenerationOutput) -> str:
        return f"{output.best_sequence_index} {output.other_sequences_indices}" if output.finished else ""

    of = answer(call_output(best, as_it_is), samples=2)
    assert of.feed(tokens("ab", "length", 1)) == b""
    assert of.feed(tokens("a", "length", 0)) == b"0 [1]"
    assert of.ended


def test_what_the_input_formatter_returned_reaches_the_output_formatter() -> None:
    def read(input_item: Input, **_: Any) -> RequestInput:
        request = OwnInput(input_text=input_item.get_as_string(), adapters="a1")
        request.parameters = {"stream": True, "top_k": 3}
        request.trace = "t1"
        return request

    body, context = InputFormatter(read, {}, TOKENIZER, as_it_is)(Input({}, [("data", b"question")]))
    assert json.loads(body) == {"inputs": "question", "stream": True, "adapters": "a1", "parameters": {"top_k": 3}}

    def write(output: RequestOutput) -> str:
        assert isinstance(output.input, OwnInput)
        return f"{output.input.trace} {output.input.parameters} {output.input.client_request_id}"

    written = answer(call_output(write, as_it_is), context=context).feed(tokens("a"))
    assert written == b"t1 {'stream': True, 'top_k': 3} r1"


@pytest.mark.parametrize("result", [None, "text", 1, ["a"]])
def test_an_input_formatter_must_return_the_payload(result: Any) -> None:
    def read(payload: dict[str, Any]) -> Any:
        return result

    with raises(TypeError, "read returned payload dict"):
        InputFormatter(read, {}, TOKENIZER, as_it_is)(Input({"Content-Type": "application/json"}, [("data", b"{}")]))


def item(item: Input) -> Any: ...
def named(input_item, **kwargs) -> None: ...  # type: ignore[no-untyped-def]
def returning(x) -> TextInput: ...  # type: ignore[no-untyped-def, empty-body]
def quoted(x: "djl_python.Input") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037
def payload(decoded_payload, tokenizer=None): ...  # type: ignore[no-untyped-def]
def bare(x): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (item, InputKind.ITEM),
        (returning, InputKind.ITEM),
        (quoted, InputKind.ITEM),
        (payload, InputKind.PAYLOAD),
        (bare, InputKind.PAYLOAD),
        (lambda input_item, **kwargs: None, InputKind.ITEM),
        (lambda x, *, tokenizer: None, InputKind.PAYLOAD),
    ],
)
def test_the_kind_of_an_input_formatter(function: Callable[..., Any], kind: InputKind) -> None:
    assert input_kind(function) is kind


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (legacy, OutputKind.LEGACY),
        (four, OutputKind.OUTPUT),
        (three, OutputKind.OUTPUT),
        (lambda response, **kwargs: None, OutputKind.RESPONSE),
        (bare, OutputKind.RESPONSE),
        (ResponseCall.__init__.__get__(1), None),
    ],
)
def test_the_kind_of_an_output_formatter(function: Callable[..., Any], kind: OutputKind | None) -> None:
    if kind is None:
        with pytest.raises(ConfigError, match=r"records.py, line \d+: @output_formatter __init__ must take"):
            output_kind(function)
    else:
        assert output_kind(function) is kind


def test_a_dict_is_asked_for_by_annotation() -> None:
    def write(response: dict[str, Any]) -> dict[str, Any]:
        return response

    assert output_kind(write) is OutputKind.DICT


@pytest.mark.parametrize("function", [lambda: None, lambda a, b: None, lambda a, *, b: None])
def test_wrong_signatures_name_the_line(function: Callable[..., Any]) -> None:
    for kind in (input_kind, output_kind):
        with pytest.raises(
            ConfigError, match=r"test_formatter_calls.py, line \d+: @.*_formatter <lambda> must take \("
        ):
            kind(function)


CHUNK = b'{"object":"chat.completion.chunk","choices":[{"delta":{"content":"a"}}]}'


@pytest.mark.parametrize(
    ("function", "data", "written"),
    [
        (as_it_is, b"data: " + CHUNK + b"\n\ndata: [DONE]\n\n", b"data: " + CHUNK + b"\n\ndata: [DONE]\n\n"),
        (as_it_is, CHUNK + b"\n" + CHUNK + b"\n", CHUNK + b"\n" + CHUNK + b"\n"),
        (lambda chunk: json.loads(chunk[6:])["object"], CHUNK + b"\n", b"chat.completion.chunk\n"),
        (lambda chunk: chunk.choices[0].delta.content * 2, CHUNK + b"\n", b"aa\n"),
        (lambda chunk: chunk.choices[0].delta.role, CHUNK + b"\n", None),
        (lambda chunk: "", CHUNK + b"\n", b""),
        (lambda chunk: {"text": chunk.choices[0].delta.content}, CHUNK + b"\n", b'{"text":"a"}\n'),
        (lambda chunk: hasattr(chunk.choices[0], "message"), CHUNK + b"\n", None),
    ],
)
def test_chunks_are_text_and_objects(function: Callable[..., Any], data: bytes, written: bytes | None) -> None:
    call = ResponseCall(function, as_it_is, takes_dicts=False)
    if written is None:
        with raises(TypeError, "return response dict"):
            call(data, streams=True)
    else:
        assert call(data, streams=True) == written


VALUES = st.recursive(st.none() | st.text() | st.integers(-9, 9) | st.floats(-9, 9), st.lists, max_leaves=4)


@example({"choices": [], "__dict__": None, "__class__": 1})
@given(document=st.dictionaries(st.text(), VALUES))
def test_identity_keeps_documents(document: dict[str, Any]) -> None:
    data = json.dumps(document, ensure_ascii=False).encode()
    for takes_dicts in (False, True):
        returned = ResponseCall(as_it_is, as_it_is, takes_dicts=takes_dicts)(data, streams=False)
        assert json.loads(returned) == document
