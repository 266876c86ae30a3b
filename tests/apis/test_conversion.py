"""Numbers such as `4.0` where an integer is meant."""

from __future__ import annotations

import json
from typing import Literal

import msgspec
import pytest

from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.core.conversion import decode
from lmi_handlers.core.errors import MAX_MESSAGE, InvalidBody, InvalidJson


class Body(msgspec.Struct):
    seed: int = 0
    temperature: float = 0.0
    logit_bias: dict[str, float] = {}
    side: Literal["left", "right"] = "left"


def test_an_integer_may_have_a_point() -> None:
    assert decode(b'{"seed": 4.0, "temperature": 0.5}', Body) == Body(seed=4, temperature=0.5)
    with pytest.raises(InvalidBody, match="seed: Expected `int`, got `float`"):
        decode(b'{"seed": 4.5}', Body)


def test_few_numbers_are_converted_because_the_event_loop_waits() -> None:
    numbers = [0.5] * 9_999
    assert decode(json.dumps({"unknown": numbers, "seed": 4.0}).encode(), Body).seed == 4
    with pytest.raises(InvalidBody, match="seed: Expected `int`, got `float`"):
        decode(json.dumps({"unknown": [*numbers, 0.5], "seed": 4.0}).encode(), Body)


def test_a_wrong_value_is_not_quoted_in_full() -> None:
    for value in ("x" * 10_000, "x - at `$.seed" * 1000):
        with pytest.raises(InvalidBody, match="side: Invalid enum value 'x") as caught:
            decode(json.dumps({"side": value}).encode(), Body)
        assert len(caught.value.message) == MAX_MESSAGE


def test_an_empty_body_is_called_empty() -> None:
    with pytest.raises(InvalidJson, match="empty"):
        decode_typed(b"", Body)
    with pytest.raises(InvalidJson, match="truncated"):
        decode_typed(b"{", Body)
