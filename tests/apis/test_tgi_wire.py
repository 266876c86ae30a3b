"""Our formatters write the same bytes as TGI's own serialisers, in `lmi conform`'s vectors. No server is needed."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from formatting import written
from hypothesis import example, given
from hypothesis import strategies as st
from paths import DATA, RECORDINGS
from prompts import rendered
from server_sent_events import json_events

from formatters.tgi.errors import error_document
from formatters.tgi.float32 import float32
from formatters.tgi.generate import TgiArrayFormatter, TgiJsonFormatter, TgiSseFormatter
from lmi_handlers.apis.tgi.dialect import plain
from lmi_handlers.core.errors import InvalidRequest, QueueFull, RequestFailed
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams

WIRE = RECORDINGS / "tgi"
BODIES: dict[str, dict[str, Any]] = json.loads((WIRE / "wire_bodies.json").read_text())
MISC: dict[str, list[str]] = json.loads((DATA / "tgi" / "wire_misc.json").read_text())
STREAMS: dict[str, str] = json.loads((WIRE / "wire_native_streams.json").read_text())

A = Token(264, " a", -0.34)
SUBSET = Token(26737, " subset", -1.2e-7)
END = Token(2, "</s>", -1.0, special=True)


def request(*, n: int = 1, seed: int | None = None, details: bool = True, **fields: Any) -> GenerationRequest:
    params = SamplingParams(n=n, seed=seed, temperature=1.0)
    return GenerationRequest(
        request_id="r", prompts=(Prompt("Hello"),), sampling_params=params, details=details, **fields
    )


def deltas(
    tokens: list[Token],
    reason: FinishReason = FinishReason.LENGTH,
    *,
    index: int = 0,
    prompt_tokens: tuple[Token, ...] = (),
) -> list[TextDelta]:
    """One delta per token, the last one with the finish reason."""
    return [
        TextDelta(
            index=index,
            tokens=(token,),
            text="" if token.special else token.text,
            finish_reason=reason if token is tokens[-1] else None,
            prompt_tokens=() if position else prompt_tokens,
        )
        for position, token in enumerate(tokens)
    ]


def golden(name: str) -> str:
    body = BODIES[name]["raw"]
    assert isinstance(body, str)
    return body


# Documents


def test_text_without_details() -> None:
    words = [" a", " subset", " of", " machine", " learning"]
    parts = deltas([Token(position, word) for position, word in enumerate(words)])
    assert written(TgiJsonFormatter(request(details=False), rendered(1)), *parts) == golden("generate_no_details")


def test_details() -> None:
    formatter = TgiJsonFormatter(request(), rendered(1))
    assert written(formatter, *deltas([A, SUBSET])) == golden("generate_details_greedy")


def test_array_with_the_prompt_prepended() -> None:
    formatter = TgiArrayFormatter(request(details=False, return_full_text=True), rendered(1))
    assert written(formatter, *deltas([A, SUBSET])) == golden("compat_root_array")


def test_prompt_tokens_end_of_sequence_and_seed() -> None:
    prompt = (Token(1, "<s>", None, special=True), Token(4321, "Test", -11.34375))
    parts = deltas([A, Token(2, "</s>", -0.0005, special=True)], FinishReason.EOS_TOKEN, prompt_tokens=prompt)
    formatter = TgiJsonFormatter(request(seed=42), rendered(2))
    assert written(formatter, *parts) == golden("generate_decoder_input_details_eos_seed")


def test_top_tokens() -> None:
    first = Token(264, " a", -0.34, top=(A, Token(278, " the", -1.5), Token(5, "cut", -2.0)))
    second = Token(26737, " subset", -1.2e-7, top=(Token(26737, " subset", -0.1), Token(99, " x", float("-inf"))))
    formatter = TgiJsonFormatter(request(top_n_tokens=2), rendered(1))
    parts = deltas([first, second], FinishReason.STOP_SEQUENCE)
    assert written(formatter, *parts) == golden("generate_top_n_tokens_stop")


def test_answer_with_the_best_mean_logprob_comes_first() -> None:
    """The other answer has a better sum but a worse mean, so the mean decides."""
    best = [Token(264, " a", -0.34), Token(26737, " subset", -1.2e-7)]
    rival = [Token(9, " b", -0.3)]
    formatter = TgiJsonFormatter(request(n=2, seed=6), rendered(1))
    parts = deltas(rival, index=0) + deltas(best, index=1)
    body = written(formatter, *parts)
    expected = golden("generate_best_of_2").replace('"logprob":-2.0', '"logprob":-0.3')
    expected = expected.replace('"seed":7', '"seed":6').replace('"seed":18446744073709551615', '"seed":7')
    assert body == expected


def test_sequences_of_best_of_have_different_seeds() -> None:
    formatter = TgiJsonFormatter(request(n=2, seed=2**64 - 1), rendered(1))
    details = json.loads(written(formatter, *deltas([A], index=0), *deltas([SUBSET], index=1)))["details"]
    assert details["seed"] == 0
    assert details["best_of_sequences"][0]["seed"] == 2**64 - 1


def test_top_tokens_come_after_best_of_sequences() -> None:
    formatter = TgiJsonFormatter(request(n=2, top_n_tokens=1), rendered(1))
    first, second = (Token(264, " a", logprob, top=(A,)) for logprob in (-1.0, -2.0))
    details = json.loads(written(formatter, *deltas([first], index=0), *deltas([second], index=1)))["details"]
    assert list(details)[-2:] == ["best_of_sequences", "top_tokens"]
    assert list(details["best_of_sequences"][0])[-1] == "top_tokens"


# Streams


def test_stream_without_details() -> None:
    formatter = TgiSseFormatter(request(details=False), rendered(6))
    assert written(formatter, *deltas([A, Token(26737, " subset", -1.0)])) == STREAMS["generate_stream"]


def test_stream_with_details() -> None:
    formatter = TgiSseFormatter(request(seed=42), rendered(6))
    assert written(formatter, *deltas([A, END], FinishReason.EOS_TOKEN)) == STREAMS["generate_stream_details"]


@pytest.mark.parametrize("name", ["stream_intermediate", "stream_intermediate_top_tokens"])
def test_stream_events(name: str) -> None:
    top = 1 if name.endswith("top_tokens") else 0
    formatter = TgiSseFormatter(request(top_n_tokens=top), rendered(6))
    token = Token(264, " a", -0.34, top=(A,))
    assert formatter.feed(TextDelta(tokens=(token,), text=" a")).decode() == f"data: {golden(name)}\n\n"


def test_each_of_several_new_tokens_is_an_event() -> None:
    at_once = TextDelta(tokens=(A, SUBSET, END), text=" a subset", finish_reason=FinishReason.EOS_TOKEN)
    one_by_one = deltas([A, SUBSET, END], FinishReason.EOS_TOKEN)
    first, second = (TgiSseFormatter(request(), rendered(6)) for _ in range(2))
    assert written(first, at_once) == written(second, *one_by_one)


def test_last_event_without_a_new_token_has_the_text() -> None:
    formatter = TgiSseFormatter(request(), rendered(6))
    parts = [TextDelta(tokens=(A,), text=" a"), TextDelta(finish_reason=FinishReason.EOS_TOKEN)]
    events = json_events(written(formatter, *parts))
    assert [event["generated_text"] for event in events] == [None, " a"]
    assert events[1]["token"]["special"] is True
    assert events[1]["details"]["generated_tokens"] == 1


def test_errors() -> None:
    empty = InvalidRequest("`inputs` cannot be empty")
    assert error_document(empty).decode() == golden("error")
    overloaded = TgiSseFormatter(request(), rendered(6)).error(QueueFull("1000 requests are waiting already"))
    assert overloaded.decode() == STREAMS["generate_stream_overloaded (HTTP 200)"]
    failed = json.loads(error_document(RequestFailed("the cause")))
    assert failed == {"error": "Request failed during generation: the cause", "error_type": "generation"}


# Numbers and strings


@pytest.mark.parametrize("pair", MISC["float"])
def test_float(pair: str) -> None:
    given_number, expected = pair.split("\t")
    assert float32(float(given_number)) == expected


def test_string() -> None:
    [text] = MISC["string"]
    body = written(TgiJsonFormatter(request(details=False), rendered(1)), *deltas([Token(1, json.loads(text), -1.0)]))
    assert body == f'{{"generated_text":{text}}}'


@given(st.floats(-(2.0**86), 2.0**86, width=32).filter(lambda number: abs(number) > 2.0**-95))
@example(9.999999e12)
@example(1e13)
def test_float_is_the_shortest_exact_representation(number: float) -> None:
    check_shortest(number)


def check_shortest(number: float) -> None:
    text = float32(number)
    assert struct.pack("f", float(text)) == struct.pack("f", number)
    shortest = np.format_float_scientific(np.float32(number), unique=True).partition("e")[0]
    digits = text.partition("e")[0].replace(".", "").strip("-").strip("0")
    assert len(digits) <= len(shortest.replace(".", "").strip("-").strip("0"))


@pytest.mark.parametrize("exponent", range(-95, 87))
def test_powers_of_two_are_the_shortest_representation_too(exponent: int) -> None:
    check_shortest(2.0**exponent)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_every_number_is_read_back_unchanged(number: float) -> None:
    assert struct.pack("f", float(float32(number))) == struct.pack("f", number)


def test_numbers_beyond_32_bits_are_null() -> None:
    assert [float32(number) for number in (1e39, -1e39, float("nan"))] == ["null"] * 3


@pytest.mark.parametrize("expected", MISC["x-compute-time"])
def test_plain_number(expected: str) -> None:
    assert plain(float(expected)) == expected


def test_plain_number_keeps_the_zeros_of_an_integer() -> None:
    assert plain(100.0) == "100"
