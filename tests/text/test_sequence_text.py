"""A backend's outputs become text deltas with tokens, cut at stop strings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.outputs import FinishReason, TextDelta, Token, TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.text.bundle import build_byte_bundle
from lmi_handlers.text.sequence import SequenceText, TextRules
from lmi_handlers.text.tokenizer import Tokenizer

END = 256


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("byte")
    return Tokenizer(directory, build_byte_bundle(directory))


def output(text: str | list[int], finish_reason: FinishReason | None = None) -> TokenOutput:
    ids = list(text.encode()) if isinstance(text, str) else text
    return TokenOutput(request_id="r", token_ids=ids, finish_reason=finish_reason)


def feed(tokenizer: Tokenizer, sampling_params: SamplingParams, *outputs: TokenOutput) -> list[TextDelta]:
    sequence = SequenceText(TextRules(tokenizer, sampling_params), [ord("x")], index=3)
    return [sequence.feed(output) for output in outputs]


def texts(deltas: list[TextDelta]) -> list[str]:
    return [token.text for delta in deltas for token in delta.tokens]


def test_a_token_becomes_a_delta(tokenizer: Tokenizer) -> None:
    [delta] = feed(tokenizer, SamplingParams(), output("a"))
    assert delta == TextDelta(index=3, tokens=(Token(ord("a"), "a", data=b"a"),), text="a")


def test_the_end_token_is_in_the_tokens_but_not_in_the_text(tokenizer: Tokenizer) -> None:
    [delta] = feed(tokenizer, SamplingParams(), output([ord("a"), END], FinishReason.EOS_TOKEN))
    assert delta.text == "a"
    assert delta.tokens[-1] == Token(END, "<|endoftext|>", None, True, data=b"<|endoftext|>")
    assert delta.finish_reason is FinishReason.EOS_TOKEN


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "a<|endoftext|>")])
def test_the_end_token_if_special_tokens_are_not_skipped(tokenizer: Tokenizer, include: bool, text: str) -> None:
    params = SamplingParams(skip_special_tokens=False, include_stop_str_in_output=include)
    [delta] = feed(tokenizer, params, output([ord("a"), END], FinishReason.EOS_TOKEN))
    assert delta.text == text
    assert delta.tokens[-1].text == "<|endoftext|>"


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "a\n")])
def test_a_stop_token_id_may_be_an_ordinary_token(tokenizer: Tokenizer, include: bool, text: str) -> None:
    params = SamplingParams(stop_token_ids=(ord("\n"),), include_stop_str_in_output=include)
    deltas = feed(tokenizer, params, output("a\n", FinishReason.STOP_SEQUENCE))
    assert deltas[0].text == "".join(texts(deltas)) == text
    assert len(deltas[0].tokens) == 2


def test_special_tokens_in_the_middle_of_the_text(tokenizer: Tokenizer) -> None:
    params = SamplingParams(ignore_eos=True)
    deltas = feed(tokenizer, params, output([ord("a"), END, ord("b")], FinishReason.LENGTH))
    assert deltas[0].text == "ab"
    assert texts(deltas) == ["a", "<|endoftext|>", "b"]
    deltas = feed(tokenizer, SamplingParams(ignore_eos=True, skip_special_tokens=False), output([ord("a"), END]))
    assert deltas[0].text == "a<|endoftext|>"


def test_an_incomplete_character_at_the_end_is_dropped(tokenizer: Tokenizer) -> None:
    [delta] = feed(tokenizer, SamplingParams(), output([ord("a"), 0xE2, 0x82], FinishReason.LENGTH))
    assert delta.text == "a"
    assert texts([delta]) == ["a", "", ""]


def test_a_stop_string_ends_the_sequence(tokenizer: Tokenizer) -> None:
    sequence = SequenceText(TextRules(tokenizer, SamplingParams(stop=("STOP",))), [ord("x")])
    first = sequence.feed(output("abST"))
    assert (first.text, first.finish_reason, len(first.tokens)) == ("ab", None, 2)
    last = sequence.feed(output("OPcd"))
    assert last.finish_reason is sequence.finish_reason is FinishReason.STOP_SEQUENCE
    assert [token.id for token in last.tokens] == list(b"STOP")
    assert last.text == "".join(token.text for token in last.tokens) == ""
    assert sequence.feed(output("ef", FinishReason.ABORT)) == TextDelta()


def test_text_that_was_held_back_is_returned_at_the_end(tokenizer: Tokenizer) -> None:
    params = SamplingParams(stop=("STOP",))
    deltas = feed(tokenizer, params, output("aST"), output([END], FinishReason.EOS_TOKEN))
    assert [delta.text for delta in deltas] == ["a", "ST"]
    assert texts(deltas) == ["a", "S", "T", "<|endoftext|>"]
    assert deltas[-1].finish_reason is FinishReason.EOS_TOKEN


def test_a_failed_sequence_returns_the_text_that_was_held_back(tokenizer: Tokenizer) -> None:
    deltas = feed(tokenizer, SamplingParams(stop=("STOP",)), output("S"), output([], FinishReason.ERROR))
    assert [(delta.text, delta.finish_reason) for delta in deltas] == [("", None), ("S", FinishReason.ERROR)]


def test_stop_strings_do_not_match_within_min_tokens(tokenizer: Tokenizer) -> None:
    params = SamplingParams(stop=("b",), min_tokens=3)
    [delta] = feed(tokenizer, params, output("abbabx"))
    assert (delta.text, delta.finish_reason) == ("abba", FinishReason.STOP_SEQUENCE)


def test_a_stop_string_may_be_a_special_token(tokenizer: Tokenizer) -> None:
    params = SamplingParams(stop=("<|endoftext|>", "ab!"), ignore_eos=True)
    [delta] = feed(tokenizer, params, output([*b"ab", END, *b"cd"]))
    assert (delta.text, delta.finish_reason) == ("ab", FinishReason.STOP_SEQUENCE)
    assert [token.text for token in delta.tokens] == ["a", "b", "<|endoftext|>"]
    [delta] = feed(
        tokenizer, SamplingParams(stop=("<|endoftext|>",), min_tokens=2), output([ord("a"), END, ord("b"), END])
    )
    assert (delta.text, len(delta.tokens)) == ("ab", 4)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_the_finish_reason_is_the_end_token_even_if_it_is_also_a_stop_string(
    tokenizer: Tokenizer, include: bool, skip: bool
) -> None:
    params = SamplingParams(stop=("<|endoftext|>",), include_stop_str_in_output=include, skip_special_tokens=skip)
    [delta] = feed(tokenizer, params, output([ord("a"), END], FinishReason.EOS_TOKEN))
    assert delta.finish_reason is FinishReason.EOS_TOKEN
    assert delta.text == ("a<|endoftext|>" if include and not skip else "a")


def test_logprobs_and_alternatives(tokenizer: Tokenizer) -> None:
    sampled = TokenOutput(
        request_id="r",
        token_ids=[ord("a"), 0xE2],
        logprobs=[-0.5, -1.0],
        top_logprobs=[[(ord("a"), -0.5), (END, -2.0)], [(0xE2, -1.0), (0xC3, -1.5)]],
    )
    [delta] = feed(tokenizer, SamplingParams(logprobs=2), sampled)
    a = Token(ord("a"), "a", -0.5, data=b"a")
    assert delta.tokens == (
        Token(ord("a"), "a", -0.5, False, (a, Token(END, "<|endoftext|>", -2.0, True, data=b"<|endoftext|>")), b"a"),
        Token(
            0xE2,
            "",
            -1.0,
            False,
            (Token(0xE2, "\ufffd", -1.0, data=b"\xe2"), Token(0xC3, "\ufffd", -1.5, data=b"\xc3")),
            b"\xe2",
        ),
    )


def test_prompt_tokens_are_returned_once(tokenizer: Tokenizer) -> None:
    sequence = SequenceText(TextRules(tokenizer, SamplingParams(prompt_logprobs=0)), [END, *"é".encode()])
    first = TokenOutput(request_id="r", token_ids=[ord("a")], prompt_logprobs=[None, -1.0, -2.0])
    assert sequence.feed(first).prompt_tokens == (
        Token(END, "<|endoftext|>", None, True, data=b"<|endoftext|>"),
        Token(0xC3, "", -1.0, data=b"\xc3"),
        Token(0xA9, "é", -2.0, data=b"\xa9"),
    )
    assert sequence.feed(output("b")).prompt_tokens == ()


def test_prompt_tokens_with_alternatives(tokenizer: Tokenizer) -> None:
    sequence = SequenceText(TextRules(tokenizer, SamplingParams(prompt_logprobs=2)), list("é".encode()))
    first = TokenOutput(
        request_id="r",
        token_ids=[ord("a")],
        prompt_logprobs=[None, -2.0],
        prompt_top_logprobs=[None, [(END, -1.0), (0xA9, -2.0)]],
    )
    one, other = sequence.feed(first).prompt_tokens
    assert one == Token(0xC3, "", data=b"\xc3")
    assert (other.text, other.data) == ("é", b"\xa9")
    assert other.top == (
        Token(END, "<|endoftext|>", -1.0, True, data=b"<|endoftext|>"),
        Token(0xA9, "\ufffd", -2.0, data=b"\xa9"),
    )


@pytest.mark.parametrize(("include", "shown"), [(False, ["a", "b", "", "", ""]), (True, ["a", "b", "S", "T", "O"])])
def test_a_stop_string_cuts_the_text_of_tokens_but_not_their_bytes(
    tokenizer: Tokenizer, include: bool, shown: list[str]
) -> None:
    params = SamplingParams(stop=("STO",), include_stop_str_in_output=include)
    deltas = feed(tokenizer, params, output("abST"), output("OP"))
    assert texts(deltas) == shown
    assert [token.data for delta in deltas for token in delta.tokens] == [b"a", b"b", b"S", b"T", b"O"]


@given(
    ids=st.lists(st.sampled_from([*b"abc", *"é".encode(), END]), max_size=30),
    stop=st.lists(st.text("abé", min_size=1, max_size=3), max_size=2).map(tuple),
    include=st.booleans(),
    skip=st.booleans(),
    step=st.integers(1, 4),
)
def test_the_text_of_a_delta_is_the_joined_text_of_its_tokens(
    tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...], include: bool, skip: bool, step: int
) -> None:
    params = SamplingParams(stop=stop, include_stop_str_in_output=include, skip_special_tokens=skip, ignore_eos=True)
    parts = [ids[start : start + step] for start in range(0, len(ids), step)]
    outputs = [output(part) for part in parts] + [output([], FinishReason.LENGTH)]
    deltas = feed(tokenizer, params, *outputs)
    for delta in deltas:
        assert delta.text == "".join(token.text for token in delta.tokens if not (skip and token.special))
    tokens = [token for delta in deltas for token in delta.tokens]
    assert [token.id for token in tokens] == ids[: len(tokens)]
    assert [token.data for token in tokens] == [tokenizer.token_bytes[token_id] for token_id in ids[: len(tokens)]]
    finish_reasons = [delta.finish_reason for delta in deltas if delta.finish_reason is not None]
    assert len(finish_reasons) == 1
    text = "".join(delta.text for delta in deltas)
    if finish_reasons == [FinishReason.LENGTH]:
        assert len(tokens) == len(ids)
        assert not any(string in text for string in stop)
    else:
        assert text.endswith(stop) if include else not any(string in text for string in stop)


@given(text=st.text(max_size=40), step=st.integers(1, 4))
def test_the_bytes_of_all_tokens_are_the_bytes_of_the_text(tokenizer: Tokenizer, text: str, step: int) -> None:
    ids = tokenizer.encode(text)
    parts = [ids[start : start + step] for start in range(0, len(ids), step)]
    deltas = feed(tokenizer, SamplingParams(ignore_eos=True, skip_special_tokens=False), *map(output, parts))
    assert "".join(delta.text for delta in deltas) == text
    assert b"".join(token.data for delta in deltas for token in delta.tokens) == text.encode()
