"""Numbers such as `4.0` where an integer is meant."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Literal

import msgspec
import pytest

from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.core.allowed_values import RULE
from lmi_handlers.core.conversion import decode
from lmi_handlers.core.errors import MAX_MESSAGE, InvalidBody, InvalidJson


class Body(msgspec.Struct):
    seed: int = 0
    temperature: float = 0.0
    logit_bias: dict[str, float] = {}
    side: Literal["left", "right"] = "left"


class Color(Enum):
    RED = "red"
    GREEN = "green"


Number = Enum("Number", {f"n{n}": f"n{n}" for n in range(31)})  # type: ignore[misc]  # more than a message lists


class Circle(msgspec.Struct, tag_field="kind", tag="circle"):
    pass


class Square(msgspec.Struct, tag_field="kind", tag="square"):
    side: Literal["left", "right"] | None = None


class Lid(msgspec.Struct, tag_field="kind", tag="lid"):
    pass


class Cord(msgspec.Struct, tag_field="kind", tag="cord"):
    pass


class Box(msgspec.Struct, tag_field="kind", tag="box"):
    closed_by: Lid | None = None


class Bag(msgspec.Struct, tag_field="kind", tag="bag"):
    closed_by: Cord | None = None


class Left(msgspec.Struct, tag_field="kind", tag="left"):
    inner: list[Left | Right] = []


class Right(msgspec.Struct, tag_field="kind", tag="right"):
    inner: list[Left | Right] = []


class Shapes(Body):
    sides: list[Left | Right] = []
    containers: list[Box | Bag] = []
    color: Color = Color.RED
    shape: Circle | Square | None = None
    shapes: list[Circle | Square] = []
    named: dict[str, Circle | Square] = {}
    pair: Annotated[tuple[Literal["left", "right"], ...], msgspec.Meta(max_length=2)] = ()
    number: Number | None = None
    names: list[Annotated[str, msgspec.Meta(pattern="^[a-z]+$", extra={RULE: "must have small letters only"})]] = []
    code: Annotated[str, msgspec.Meta(pattern="^[0-9]+$")] = ""
    counts: dict[int, int] = {}


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
        assert len(caught.value.message) < 200
        assert caught.value.message.endswith("...: must be one of left, right")
    with pytest.raises(InvalidBody) as caught:
        decode(json.dumps({"shape": {"kind": "x" * 10_000}}).encode(), Shapes)
    assert len(caught.value.message) < 200
    with pytest.raises(InvalidBody, match="number: Invalid enum value") as caught:
        decode(json.dumps({"number": "x" * 10_000}).encode(), Shapes)
    assert len(caught.value.message) == MAX_MESSAGE


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"containers": [{"kind": "box", "closed_by": {"kind": "cord"}}]},
            "containers[0].closed_by.kind: Invalid value 'cord'",
        ),
        ({"side": "up"}, "side: Invalid enum value 'up': must be one of left, right"),
        ({"side": 3}, "side: Expected `str`, got `int`"),
        ({"color": "blue"}, "color: Invalid enum value 'blue': must be one of red, green"),
        ({"shape": {"kind": "line"}}, "shape.kind: Invalid value 'line': must be one of circle, square"),
        ({"shape": {}}, "shape: Object missing required field `kind`"),
        (
            {"shapes": [{"kind": "circle"}, {"kind": ""}]},
            "shapes[1].kind: Invalid value '': must be one of circle, square",
        ),
        ({"named": {"a": {"kind": "x"}}}, "named[...].kind: Invalid value 'x': must be one of circle, square"),
        ({"pair": ["left", "no"]}, "pair[1]: Invalid enum value 'no': must be one of left, right"),
        (
            {"shape": {"kind": "square", "side": "it's"}},
            'shape.side: Invalid enum value "it\'s": must be one of left, right',
        ),
        ({"names": ["a", "B"]}, "names[1]: must have small letters only"),
        ({"code": "x"}, "code: Expected `str` matching regex '^[0-9]+$'"),
        ({"counts": {"x": 1}}, "counts: Expected `int`, got `str` as a name"),
    ],
)
def test_values_that_are_allowed_are_told(body: dict[str, object], message: str) -> None:
    """Some of msgspec's words decide how."""
    with pytest.raises(InvalidBody) as caught:
        decode(json.dumps(body).encode(), Shapes)
    assert str(caught.value) == message


def test_a_body_that_is_nested_deeply_costs_no_more_for_each_level() -> None:
    deep: dict[str, object] = {"kind": "up"}
    for _ in range(100):
        deep = {"kind": "left", "inner": [deep]}
    with pytest.raises(InvalidBody, match=r"kind: Invalid value 'up': must be one of left, right$"):
        decode(json.dumps({"sides": [deep]}).encode(), Shapes)


def test_an_empty_body_is_called_empty() -> None:
    with pytest.raises(InvalidJson, match="empty"):
        decode_typed(b"", Body)
    with pytest.raises(InvalidJson, match="truncated"):
        decode_typed(b"{", Body)
