"""Responses are encoded exactly as Python's json.dumps would write them."""

from __future__ import annotations

import json

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from formatters.base import Response, encode, python_float
from formatters.lmi.rolling import dumps


class Sample(Response, kw_only=True):
    text: str
    left_out: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[float]
    texts: dict[str, str]


def sample(text: str, logprobs: list[float]) -> Sample:
    return Sample(text=text, logprobs=[python_float(logprob) for logprob in logprobs], texts={text: text})


LOGPROBS = st.floats(max_value=0.0, allow_infinity=False)


@given(text=st.text(), logprobs=st.lists(LOGPROBS))
@example(text='\x00\x1f\x7f\u2028"\\/, : ', logprobs=[-0.0, -1e-4, -9.999e-5, -1e-5, -2.5e-9, -5e-324, -9999.0])
@example(text="", logprobs=[-9999999999999998.0, -1e16, -3.4028234663852886e38])  # the last is a masked token's
def test_same_as_json_dumps(text: str, logprobs: list[float]) -> None:
    expected = {"text": text, "logprobs": logprobs, "texts": {text: text}}
    response = sample(text, logprobs)
    assert encode(response).decode() == json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    assert dumps(response).decode() == json.dumps(expected, ensure_ascii=False)


def test_numbers_that_json_does_not_have_are_null() -> None:
    assert encode([python_float(value) for value in (float("nan"), float("inf"), -float("inf"))]) == b"[null,null,null]"
