"""LMI parameters that only some engines support, and LMI's names for TensorRT-LLM."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from facts import raises

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.lmi.dialect import LmiDialect
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import StructuredOutputs
from lmi_handlers.serving.parsed import Parsed

TENSORRT_LLM = {"temperature": 0.8, "top_k": 5, "top_p": 0.85}
SCHEMA = {"type": "object", "properties": {"a": {"const": "é"}}}


def parsed(
    parameters: dict[str, Any], *, adapter: str | None = None, defaults: dict[str, float] | None = None, **body: Any
) -> Parsed:
    data = json.dumps({"inputs": "x", "parameters": parameters} | body).encode()
    dialect = LmiDialect(ServingProperties(), defaults or {})
    return dialect.parse(Payload(data=data, request_id="r", adapter=adapter))


def parse(parameters: dict[str, Any], **options: Any) -> GenerationRequest:
    return parsed(parameters, **options).request


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, None),
        ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
        ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=("a", "b"))),
        ({"guided_grammar": "root ::= x"}, StructuredOutputs(grammar="root ::= x")),
        ({"guided_json": '{"type": "null"}'}, StructuredOutputs(json='{"type": "null"}')),
        ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, StructuredOutputs(regex="a")),
        ({"structured_outputs": {"json_object": False}, "guided_regex": "b"}, StructuredOutputs(regex="b")),
    ],
)
def test_structured_outputs(parameters: dict[str, Any], wanted: StructuredOutputs | None) -> None:
    assert parse(parameters).sampling_params.structured_outputs == wanted


@pytest.mark.parametrize("parameters", [{"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}])
def test_schema_as_an_object(parameters: dict[str, Any]) -> None:
    structured_outputs = parse(parameters).sampling_params.structured_outputs
    assert structured_outputs is not None
    assert json.loads(structured_outputs.json or "") == SCHEMA


@pytest.mark.parametrize(
    "parameters",
    [
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False}},
        {"structured_outputs": {"regex": ""}},
        {"guided_choice": []},
        {"guided_regex": "a", "guided_grammar": "root ::= a"},
        {"guided_regex": 3},
        {"structured_outputs": "a"},
    ],
)
def test_error_names_the_invalid_structured_output(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(parameters)
    assert str(caught.value).startswith(tuple(f"parameters.{name}" for name in parameters))


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"json_object": False}, "guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "structured_outputs"),
    ],
)
def test_an_engine_error_names_the_field_that_constrains_the_answer(parameters: dict[str, Any], field: str) -> None:
    assert parsed(parameters).alias("structured_outputs") == f"parameters.{field}"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"do_sample": True}, (0.8, 5, 0.85)),
        ({"do_sample": True, "top_k": 7}, (0.8, 7, 0.85)),
        ({"do_sample": True, "temperature": 1.2, "runtime_top_p": 0.5}, (1.2, 5, 0.5)),
        ({"temperature": 1.2}, (1.2, 0, 1.0)),
        ({"do_sample": False}, (0.0, 0, 1.0)),
        ({}, (0.0, 0, 1.0)),
    ],
)
def test_lmi_defaults_for_tensorrt_llm(parameters: dict[str, Any], expected: tuple[float, int, float]) -> None:
    params = parse(parameters, defaults=TENSORRT_LLM).sampling_params
    assert (params.temperature, params.top_k, params.top_p) == expected


@pytest.mark.parametrize("seed", ["9" * 5000, "1" * 21, "\u0661", "-1", "1_0", ""], ids=lambda text: text[:8])
@pytest.mark.parametrize("name", ["seed", "random_seed"])
def test_seed_that_is_not_a_number_is_rejected(name: str, seed: str) -> None:
    with raises(InvalidRequest, f"parameters.{name}: integer 0 18446744073709551615"):
        parse({name: seed})


def test_whole_numbers_may_have_a_point() -> None:
    """As in LMI, whose pydantic models take both."""
    params = parse({"max_new_tokens": 4.0, "top_k": 1e1, "logit_bias": {"5": 1}}).sampling_params
    assert (params.max_tokens, params.top_k) == (4, 10)
    with pytest.raises(InvalidRequest, match=r"parameters\.max_new_tokens: Expected `int \| null`, got `float`"):
        parse({"max_new_tokens": 4.5})


def test_lmi_names_for_tensorrt_llm() -> None:
    params = parse({"request_output_len": 3, "max_new_tokens": 9, "runtime_top_k": 4, "top_k": 5, "random_seed": "8"})
    assert (params.sampling_params.max_tokens, params.sampling_params.top_k, params.sampling_params.seed) == (3, 4, 8)
    beams = parse({"num_beams": 2, "len_penalty": 0.5}).beam_search
    assert beams is not None
    assert beams.length_penalty == 0.5
    with pytest.raises(InvalidRequest, match=r"^parameters\.request_output_len: "):
        parse({"request_output_len": 0})


@pytest.mark.parametrize(
    ("inputs", "adapters", "header", "expected"),
    [
        ("x", None, None, (None,)),
        ("x", "a", None, ("a",)),
        ("x", "a", "b", ("a",)),
        ("x", None, "b", ("b",)),
        ("x", "", "b", (None,)),
        (["x", "y"], "a", None, ("a", "a")),
        (["x", "y"], ["a", ""], None, ("a", None)),
        (["x", "y"], ["a", None], None, ("a", None)),
    ],
)
def test_adapters(inputs: object, adapters: object, header: str | None, expected: tuple[str | None, ...]) -> None:
    prompts = parse({}, inputs=inputs, adapters=adapters, adapter=header).prompts
    assert tuple(prompt.adapter for prompt in prompts) == expected


@pytest.mark.parametrize("adapters", [3, ["a", "b"], ["a", 3], {}, []])
def test_invalid_adapters(adapters: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^adapters: "):
        parse({}, adapters=adapters)


def test_other_parameters() -> None:
    request = parse({"bad_words": "no", "allowed_token_ids": [1, 2], "priority": 3})
    assert request.sampling_params.bad_words == ("no",)
    assert request.sampling_params.allowed_token_ids == (1, 2)
    assert request.priority == 3


@pytest.mark.parametrize(
    ("parameters", "asked"),
    [({}, None), ({"decoder_input_details": True}, 0), ({"prompt_logprobs": 0}, 0), ({"prompt_logprobs": 5}, 0)],
)
def test_only_returned_prompt_logprobs_are_requested(parameters: dict[str, Any], asked: int | None) -> None:
    assert parse(parameters).sampling_params.prompt_logprobs == asked


def test_negative_number_of_prompt_logprobs() -> None:
    with raises(InvalidRequest, "parameters.prompt_logprobs: 0 128 -1"):
        parse({"prompt_logprobs": -1})


def test_little_is_kept_of_the_names_of_unknown_parameters() -> None:
    dialect = LmiDialect(ServingProperties(), {})
    tracemalloc.start()
    for number in range(8):
        data = json.dumps({"inputs": "x", str(number) + "x" * (1 << 20): 1}).encode()
        dialect.parse(Payload(data=data, request_id="r"))
    del data
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 20
