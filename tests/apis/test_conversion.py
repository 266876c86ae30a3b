"""Numbers such as `4.0` where an integer is meant."""

from __future__ import annotations

import json

import msgspec
import pytest

from lmi_handlers.core.conversion import decode
from lmi_handlers.core.errors import InvalidBody


class Body(msgspec.Struct):
    seed: int = 0
    temperature: float = 0.0
    logit_bias: dict[str, float] = {}


def test_an_integer_may_have_a_point() -> None:
    assert decode(b'{"seed": 4.0, "temperature": 0.5}', Body) == Body(seed=4, temperature=0.5)
    with pytest.raises(InvalidBody, match="seed: Expected `int`, got `float`"):
        decode(b'{"seed": 4.5}', Body)


def test_few_numbers_are_converted_because_the_event_loop_waits() -> None:
    numbers = [0.5] * 9_999
    assert decode(json.dumps({"unknown": numbers, "seed": 4.0}).encode(), Body).seed == 4
    with pytest.raises(InvalidBody, match="seed: Expected `int`, got `float`"):
        decode(json.dumps({"unknown": [*numbers, 0.5], "seed": 4.0}).encode(), Body)
