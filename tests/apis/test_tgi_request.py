"""How TGI's body is parsed into a `GenerationRequest`: defaults, names, grammars, and invalid requests."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from capabilities import capabilities
from facts import raises
from hypothesis import given
from hypothesis import strategies as st

from formatters.tgi.generate import TgiArrayFormatter, TgiJsonFormatter, TgiSseFormatter
from lmi_handlers.apis.api import Context
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.apis.tgi.dialect import CompatDialect, GenerateDialect, TgiDialect
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidBody, InvalidRequest, LMIError
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.serving.parsed import Parsed

GENERATE = GenerateDialect(ServingProperties(), TgiJsonFormatter)
GENERATE_STREAM = GenerateDialect(ServingProperties(), TgiSseFormatter)
COMPAT = CompatDialect(ServingProperties())
ABSENT = object()


def parse(parameters: object = ABSENT, dialect: TgiDialect = GENERATE, **body: object) -> Parsed:
    document = {"inputs": "What is Deep Learning?"} | body
    if parameters is not ABSENT:
        document["parameters"] = parameters
    return dialect.parse(Payload(data=json.dumps(document).encode(), request_id="r"))


def params(parameters: object = ABSENT, dialect: TgiDialect = GENERATE) -> SamplingParams:
    return parse(parameters, dialect).request.sampling_params


# Defaults


def test_requests_without_parameters_sample_and_others_are_greedy() -> None:
    assert (params().temperature, params({}).temperature) == (1.0, 0.0)


def test_defaults() -> None:
    request = parse({}).request
    greedy = SamplingParams(temperature=0.0, include_stop_str_in_output=True)
    assert request == GenerationRequest(
        request_id="r", prompts=(Prompt("What is Deep Learning?"),), sampling_params=greedy, stream=False
    )


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({"temperature": 1.0}, 0.0),
        ({"temperature": 0.5}, 0.5),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.5}, 1.0),
        ({"typical_p": 0.5}, 1.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": 0.5}, 0.5),
    ],
)
def test_which_parameters_enable_sampling(parameters: dict[str, Any], temperature: float) -> None:
    assert params(parameters).temperature == temperature


def test_nulls_of_the_text_generation_client_are_absent() -> None:
    """Version 0.7.0 of the package sends every field."""
    parameters: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": 20,
        "repetition_penalty": None,
        "frequency_penalty": None,
        "return_full_text": False,
        "stop": [],
        "seed": None,
        "temperature": None,
        "top_k": None,
        "top_p": None,
        "truncate": None,
        "typical_p": None,
        "best_of": None,
        "watermark": False,
        "details": True,
        "decoder_input_details": False,
        "top_n_tokens": None,
        "grammar": None,
        "adapter_id": None,
    }
    request = parse(parameters, COMPAT, stream=False).request
    expected = SamplingParams(temperature=0.0, max_tokens=20, logprobs=0, include_stop_str_in_output=True)
    assert request.sampling_params == expected


# Routes


def test_formatters() -> None:
    assert parse(dialect=GENERATE, stream=True).formatter is TgiJsonFormatter
    assert parse(dialect=GENERATE_STREAM, stream=False).formatter is TgiSseFormatter
    assert parse(dialect=COMPAT).formatter is TgiArrayFormatter
    assert parse(dialect=COMPAT, stream=True).formatter is TgiSseFormatter


@pytest.mark.parametrize(
    ("dialect", "default"),
    [
        (GENERATE, False),
        (GENERATE_STREAM, False),
        (COMPAT, True),
        (CompatDialect(ServingProperties(task="text-generation")), True),
        (CompatDialect(ServingProperties(task="text2text-generation")), False),
    ],
)
def test_full_text(dialect: TgiDialect, default: bool) -> None:
    assert parse({}, dialect).request.return_full_text is default
    assert parse({"return_full_text": None}, dialect).request.return_full_text is default
    assert parse({"return_full_text": not default}, dialect).request.return_full_text is not default


def test_sagemakers_streaming_api_streams_unless_the_body_says_no() -> None:
    bodies = {b'{"inputs": "a"}': True, b'{"inputs": "a", "stream": false}': False}
    for data, expected in bodies.items():
        payload = Payload(data=data, request_id="r", stream=True)
        assert COMPAT.parse(payload).request.stream is expected


def test_tgi_compat_selects_tgi_on_the_invoke_routes() -> None:
    for properties in (ServingProperties(tgi_compat=True), ServingProperties(tgi_compat=True, rolling_batch="disable")):
        assert isinstance(ServedApis(Context(properties=properties)).invocations.native, CompatDialect)
    with raises(ConfigError, "option.output_formatter=jsonlines conflicts option.tgi_compat=true"):
        ServedApis(Context(properties=ServingProperties(tgi_compat=True, output_formatter="jsonlines")))


# Fields


def test_every_field_is_parsed() -> None:
    parameters = {
        "temperature": 0.5,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "top_k": 10,
        "top_p": 0.9,
        "typical_p": 0.8,
        "max_new_tokens": 7,
        "return_full_text": True,
        "stop": ["x", "yz"],
        "truncate": 3,
        "watermark": True,
        "details": True,
        "decoder_input_details": True,
        "seed": 2**64 - 1,
        "top_n_tokens": 2,
        "adapter_id": "french",
    }
    parsed = parse(parameters)
    assert parsed.request == GenerationRequest(
        request_id="r",
        prompts=(Prompt("What is Deep Learning?", "french"),),
        truncate=3,
        details=True,
        decoder_input_details=True,
        return_full_text=True,
        top_n_tokens=2,
        sampling_params=SamplingParams(
            temperature=0.5,
            repetition_penalty=1.1,
            frequency_penalty=0.2,
            top_k=10,
            top_p=0.9,
            typical_p=0.8,
            max_tokens=7,
            stop=("x", "yz"),
            include_stop_str_in_output=True,
            watermark=True,
            seed=2**64 - 1,
            logprobs=2,
            prompt_logprobs=0,
        ),
    )


def test_adapter_may_be_named_outside_the_body() -> None:
    adapters = {b'{"inputs": "a"}': "german", b'{"inputs": "a", "parameters": {"adapter_id": "french"}}': "french"}
    for data, expected in adapters.items():
        request = COMPAT.parse(Payload(data=data, request_id="r", adapter="german")).request
        assert request.prompts == (Prompt("a", expected),)


def test_older_name_of_stop() -> None:
    assert params({"stop_sequences": ["x"]}).stop == ("x",)
    assert params({"stop": ["y"], "stop_sequences": ["x"]}).stop == ("y",)


def test_seed_is_chosen_if_it_is_returned() -> None:
    seeds = {params({"do_sample": True, "details": True}).seed for _ in range(3)}
    assert len(seeds) == 3
    assert None not in seeds
    assert params({"do_sample": True}).seed is None
    assert params({"details": True}).seed is None
    assert params({"details": True, "seed": 5}).seed is None, "greedy decoding needs no seed, and TGI returns null"
    assert params({"do_sample": True, "seed": 0}).seed == 0


@pytest.mark.parametrize(("best_of", "n"), [(None, 1), (0, 1), (1, 1), (2, 2)])
def test_best_of(best_of: int | None, n: int) -> None:
    assert params({"do_sample": True, "best_of": best_of}).n == n


def test_requesting_prompt_tokens_enables_details() -> None:
    assert parse({"decoder_input_details": True}).request.details


def test_unknown_fields_are_ignored_and_named() -> None:
    parsed = parse({"add_special_tokens": False, "top_a": 1}, sagemaker_base_url="x", stream=None)
    assert parsed.request.ignored_parameters == ("sagemaker_base_url", "stream", "add_special_tokens", "top_a")


SCHEMA = {"properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}
SCHEMA_TEXT = '{"properties":{"b":{"type":"string"},"a":{}},"required":["b"]}'


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ({"type": "json", "value": SCHEMA}, StructuredOutputs(json=SCHEMA_TEXT)),
        ({"type": "json", "value": json.dumps(SCHEMA)}, StructuredOutputs(json=SCHEMA_TEXT)),
        ({"type": "json_object", "value": SCHEMA}, StructuredOutputs(json=SCHEMA_TEXT)),
        ({"type": "json_object"}, StructuredOutputs(json_object=True)),
        ({"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}, StructuredOutputs(json=SCHEMA_TEXT)),
        ({"type": "json_schema", "value": {"schema": SCHEMA, "strict": True}}, StructuredOutputs(json=SCHEMA_TEXT)),
        (
            {"type": "json_schema", "value": {"schema": SCHEMA, "strict": False}},
            StructuredOutputs(json=SCHEMA_TEXT, strict=False),
        ),
        (
            {"type": "json", "value": {"properties": {"a": {"const": 10**40}}}},
            StructuredOutputs(json=f'{{"properties":{{"a":{{"const":{10**40}}}}}}}'),
        ),
        ({"type": "regex", "value": "a+"}, StructuredOutputs(regex="a+")),
        (None, None),
    ],
)
def test_grammar(grammar: object, expected: StructuredOutputs | None) -> None:
    assert params({"grammar": grammar}).structured_outputs == expected


# Invalid requests


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"best_of": 3, "do_sample": True}, "`best_of` must be > 0 and <= 2. Given: 3"),
        ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"typical_p": 1}, "`typical_p` must be > 0.0 and < 1.0"),
        ({"top_p": 1e-60}, "`top_p` must be > 0.0 and < 1.0"),
        ({"frequency_penalty": -2.5}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"frequency_penalty": 1e300}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"repetition_penalty": -1}, "`repetition_penalty` must be strictly positive"),
        ({"grammar": {"type": "json", "value": 7}}, 'grammar is not valid: 7 is not of types "boolean", "object"'),
        ({"grammar": {"type": "regex", "value": ""}}, "parameters.grammar: regex must not be empty"),
        ({"stop": [""]}, "parameters.stop: must not contain an empty string"),
        ({"temperature": 101}, "parameters.temperature: must be from 0 to 100, got 101.0"),
    ],
)
def test_values(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(parameters)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"stop": ["a", 1]}, "parameters.stop[1]"),
        ({"stop": "a"}, "parameters.stop"),
        ({"max_new_tokens": 2**32}, "parameters.max_new_tokens"),
        ({"top_k": 2**31}, "parameters.top_k"),
        ({"seed": -1}, "parameters.seed"),
        ({"seed": 2**64}, "parameters.seed"),
        ({"seed": 10**400}, "parameters.seed"),
        ({"details": None}, "parameters.details"),
        ({"grammar": {"type": "json_schema", "value": {}}}, "parameters.grammar.value"),
        ({"grammar": "a+"}, "parameters.grammar"),
        ([], "parameters"),
    ],
)
def test_types(parameters: object, path: str) -> None:
    with pytest.raises(InvalidBody) as caught:
        parse(parameters)
    assert caught.value.field == path
    assert len(str(caught.value)) < 200


def test_limits_are_options() -> None:
    properties = ServingProperties(max_best_of=1, max_stop_sequences=1, max_top_n_tokens=0)
    dialect = GenerateDialect(properties, TgiJsonFormatter)
    for parameters, message in (
        ({"best_of": 2, "do_sample": True}, "`best_of` != 1 is not allowed for this endpoint"),
        ({"stop": ["a", "b"]}, "`stop` supports up to 1 stop sequences. Given: 2"),
        ({"top_n_tokens": 1}, "`top_n_tokens` must be >= 0 and <= 0. Given: 1"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse(parameters, dialect)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tokens", "max_new_tokens", "truncate", "message"),
    [
        (100, None, None, None),
        (100, 412, None, None),
        (400, 112, 400, None),
        (1, 2000, None, "Given: 1 `inputs` tokens and 1024 `max_new_tokens`"),
        (512, None, None, "`inputs` must have less than 400 tokens. Given: 512"),
        (513, None, None, "Given: 513 `inputs` tokens and 0 `max_new_tokens`"),
        (0, None, 0, "`truncate` must be strictly positive and less than 400. Given: 0"),
        (1, None, 401, "`truncate` must be strictly positive and less than 400. Given: 401"),
    ],
)
def test_lengths(tokens: int, max_new_tokens: int | None, truncate: int | None, message: str | None) -> None:
    parsed = parse({"max_new_tokens": max_new_tokens, "truncate": truncate})
    if message is None:
        parsed.check_length(parsed.request, 0, tokens, capabilities(max_input_len=400, max_model_len=512))
        return
    with pytest.raises(InvalidRequest) as caught:
        parsed.check_length(parsed.request, 0, tokens, capabilities(max_input_len=400, max_model_len=512))
    assert str(caught.value).endswith(message)


def test_more_than_1024_new_tokens_are_limited_by_the_context() -> None:
    parsed = parse({"max_new_tokens": 5000})
    parsed.check_length(parsed.request, 0, 1000, capabilities(max_model_len=2048))
    assert parsed.request.sampling_params.max_tokens == 5000


# Arbitrary bodies


def json_values() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner), max_leaves=5
    )


@given(st.sampled_from((GENERATE, GENERATE_STREAM, COMPAT)), json_values())
def test_any_value_is_parsed_or_rejected(dialect: TgiDialect, value: object) -> None:
    check(dialect, json.dumps(value).encode())


@given(
    st.sampled_from((GENERATE, GENERATE_STREAM, COMPAT)),
    st.dictionaries(
        st.sampled_from(tuple(parse({}).request.sampling_params.__struct_fields__)) | st.text(), json_values()
    ),
)
def test_any_parameters_are_parsed_or_rejected(dialect: TgiDialect, parameters: dict[str, Any]) -> None:
    check(dialect, json.dumps({"inputs": "a", "parameters": parameters}).encode())


@given(st.binary(max_size=40))
def test_any_bytes_are_parsed_or_rejected(data: bytes) -> None:
    check(COMPAT, data)


@pytest.mark.parametrize("depth", [*range(150, 1100, 25), 100_000])
def test_any_excessive_depth_is_rejected(depth: int) -> None:
    check(GENERATE, b'{"inputs":' + b"[" * depth + b"]" * depth + b"}")


def check(dialect: TgiDialect, data: bytes) -> None:
    try:
        dialect.parse(Payload(data=data, request_id="r"))
    except LMIError as error:
        response = dialect.error(error)
        assert 400 <= response.status < 500
        assert set(msgspec.json.decode(response.body)) == {"error", "error_type"}
