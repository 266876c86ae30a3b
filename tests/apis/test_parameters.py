"""Fields of a body that declare which fields of `SamplingParams` they set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import pytest

from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaBody
from lmi_handlers.apis.aleph_alpha.completion import AlephAlphaCompletionBody
from lmi_handlers.apis.anthropic.body import MessagesBody
from lmi_handlers.apis.documentation import parameter_bounds
from lmi_handlers.apis.lmi.body import LmiParameters
from lmi_handlers.apis.mindie.body import MindieParameters
from lmi_handlers.apis.openai.body import ChatCompletionBody, CompletionBody
from lmi_handlers.apis.openai.responses_body import ResponseBody
from lmi_handlers.apis.parameters import (
    Affects,
    Param,
    client_field,
    names_of,
    sampling_params,
    values_of,
)
from lmi_handlers.apis.tgi.body import TgiParameters
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import BeamSearchParams
from lmi_handlers.core.sampling_params import SamplingParams


def positive(value: float) -> float | None:
    if value < 0:
        raise InvalidRequest("must not be negative", field="top_p")
    return value or None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body with each kind of field."""

    samples: Annotated[bool, Affects("temperature", "top_k")] | None = None
    temperature: float | None = None
    tokens: Annotated[int, Param("max_tokens")] | None = None
    limit: Annotated[int, msgspec.Meta(ge=0), Param("max_tokens")] | None = None
    newest: Annotated[int, Param("max_tokens", first=True)] | None = None
    top_p: Annotated[float | None, Param(convert=positive)] = None
    mass: Annotated[float, Param("top_p")] | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    shown: Annotated[bool, Affects("logprobs")] | None = None
    unrelated: list[int] | None = None


class OtherBody(msgspec.Struct, kw_only=True):
    """A body of another API."""

    temperature: float | None = None
    stop: list[str] | str | None = None
    max_tokens: int | None = None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (Body(), SamplingParams()),
        (Body(temperature=0.5, unrelated=[1]), SamplingParams(temperature=0.5)),
        (Body(tokens=3), SamplingParams(max_tokens=3)),
        (Body(limit=4, tokens=3), SamplingParams(max_tokens=3)),
        (Body(limit=4, tokens=3, newest=5), SamplingParams(max_tokens=5)),
        (Body(stop="x"), SamplingParams(stop=("x",))),
        (Body(stop=["x", "y"], stop_token_ids=[5]), SamplingParams(stop=("x", "y"), stop_token_ids=(5,))),
        (Body(top_p=0.5, mass=0.7), SamplingParams(top_p=0.5)),
        (Body(top_p=0, mass=0.7), SamplingParams(top_p=0.7)),
        (Body(samples=True, shown=True), SamplingParams()),
    ],
    ids=str,
)
def test_fields_set_what_they_declare(body: Body, expected: SamplingParams) -> None:
    assert sampling_params(body, {}, {}) == expected


def test_computed_values_come_before_the_body_and_defaults_after_it() -> None:
    body = Body(temperature=0.5, tokens=3, stop="x")
    params = sampling_params(body, {"temperature": 0.1, "top_k": 7, "max_tokens": 9}, {"max_tokens": None, "stop": ()})
    assert params == SamplingParams(temperature=0.5, top_k=7, max_tokens=9, stop=())


def test_errors_of_a_conversion() -> None:
    body = Body(top_p=-1)
    with pytest.raises(InvalidRequest) as caught:
        sampling_params(body, {}, {})
    assert caught.value.field == "top_p"


@pytest.mark.parametrize(
    ("body", "name", "field"),
    [
        (Body(tokens=3), "max_tokens", "tokens"),
        (Body(limit=3), "max_tokens", "limit"),
        (Body(tokens=3, newest=3), "max_tokens", "newest"),
        (Body(), "max_tokens", "newest"),
        (Body(mass=0.5), "top_p", "mass"),
        (Body(), "top_p", "top_p"),
        (Body(samples=True), "temperature", "samples"),
        (Body(samples=True, temperature=2.0), "temperature", "temperature"),
        (Body(samples=True), "top_k", "samples"),
        (Body(), "min_p", "min_p"),
    ],
    ids=str,
)
def test_errors_name_the_field_that_the_client_set(body: Body, name: str, field: str) -> None:
    assert client_field(body, name) == field


def test_bodies_of_other_apis() -> None:
    body = Body(temperature=0.5, newest=4, stop=["x"], top_p=0.5)
    assert values_of(body, OtherBody) == {"temperature": 0.5, "max_tokens": 4, "stop": ["x"]}


def test_bounds_are_those_of_what_a_field_sets() -> None:
    bounds, known = parameter_bounds(Body), parameter_bounds(SamplingParams)
    assert bounds["tokens"] == bounds["newest"] == known["max_tokens"]
    assert bounds["mass"] == bounds["top_p"] == known["top_p"]
    assert bounds.keys().isdisjoint({"samples", "shown", "unrelated"})


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (LmiParameters, (SamplingParams, BeamSearchParams)),
        (TgiParameters, (SamplingParams,)),
        (MindieParameters, (SamplingParams,)),
        (ChatCompletionBody, (SamplingParams,)),
        (CompletionBody, (SamplingParams,)),
        (AlephAlphaCompletionBody, (SamplingParams,)),
        (AlephAlphaBody, (ChatCompletionBody,)),
        (ResponseBody, (ChatCompletionBody,)),
        (MessagesBody, (ChatCompletionBody,)),
    ],
)
def test_marks_name_fields_that_exist(body: type[msgspec.Struct], kinds: tuple[type[msgspec.Struct], ...]) -> None:
    known = set().union(*(kind.__struct_fields__ for kind in kinds))
    assert {name for field, name in names_of(body).items() if name != field} <= known
    hints = get_type_hints(body, include_extras=True).values()
    marks = [mark for hint in hints for mark in marks_of(hint) if isinstance(mark, Affects)]
    assert {name for mark in marks for name in mark.names} <= known | {"adapters"}


def marks_of(hint: Any) -> Iterator[object]:
    """Whatever stands in an `Annotated`, also in one of the members of a union."""
    yield from getattr(hint, "__metadata__", ())
    for member in get_args(hint):
        yield from marks_of(member)
