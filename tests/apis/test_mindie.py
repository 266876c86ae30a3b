"""MindIE's dialect: the bytes of its documentation's examples, its limits, and how a real server handles any body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from capabilities import capabilities
from formatting import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import RECORDINGS
from prompts import rendered
from server_sent_events import event_data, json_events
from serving import Server, StartServer

from formatters.mindie.generate import MindieJsonFormatter, MindieSseFormatter
from lmi_handlers.apis.api import Context
from lmi_handlers.apis.base import Dialect, Payload
from lmi_handlers.apis.lmi.dialect import LmiDialect
from lmi_handlers.apis.mindie.dialect import MindieDialect
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.apis.tgi.body import TgiParameters
from lmi_handlers.apis.tgi.dialect import CompatDialect
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.serving.parsed import Parsed

EXAMPLES = RECORDINGS / "mindie"
REQUEST: dict[str, Any] = json.loads((EXAMPLES / "request.json").read_text())
DOCUMENT: dict[str, Any] = json.loads((EXAMPLES / "document.json").read_text())
STREAM = (EXAMPLES / "stream.txt").read_text()
MOST_SEED = 2**64 - 1

MINDIE = MindieDialect(ServingProperties())
MODEL = capabilities(max_input_len=400, max_model_len=512)


def parse(parameters: object = None, dialect: MindieDialect = MINDIE, **body: object) -> Parsed:
    document = {"inputs": "My name is", "parameters": parameters} | body
    return dialect.parse(Payload(data=json.dumps(document).encode(), request_id="r"))


def params(parameters: object = None) -> SamplingParams:
    return parse(parameters).request.sampling_params


# Examples of the documentation


def compact(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def request(*, details: bool = True, **fields: Any) -> GenerationRequest:
    params = SamplingParams(seed=42)
    return GenerationRequest(
        request_id="r", prompts=(Prompt("Hello"),), sampling_params=params, details=details, **fields
    )


def example_deltas(last: FinishReason = FinishReason.LENGTH) -> list[TextDelta]:
    """The deltas of the example stream."""
    tokens = [json.loads(line.removeprefix("data: "))["token"] for line in STREAM.splitlines() if line]
    return [
        TextDelta(
            tokens=(Token(token["id"], token["text"]),),
            text=token["text"],
            finish_reason=last if token is tokens[-1] else None,
        )
        for token in tokens
    ]


def test_document() -> None:
    """Only `special` differs, because its value is known here."""
    token = Token(0, "test")
    delta = TextDelta(
        tokens=(token,),
        text=DOCUMENT["generated_text"],
        finish_reason=FinishReason.LENGTH,
        prompt_tokens=(token,),
    )
    expected = compact(DOCUMENT).replace('"special":null', '"special":false')
    assert written(MindieJsonFormatter(request(), rendered(1)), delta) == expected


def test_stream() -> None:
    body = written(MindieSseFormatter(request(details=False), rendered(6)), *example_deltas())
    assert body == STREAM.replace('"special":null', '"special":false')


def test_details_of_a_stream() -> None:
    *first, last = event_data(written(MindieSseFormatter(request(), rendered(6)), *example_deltas()))
    assert all(event.endswith(',"generated_text":null,"details":null}') for event in first)
    assert last.endswith(',"details":{"finish_reason":"length","generated_tokens":20,"seed":42}}')


def test_text_without_details() -> None:
    body = written(MindieJsonFormatter(request(details=False), rendered(6)), *example_deltas())
    assert body == compact({"generated_text": DOCUMENT["generated_text"]})


def test_values_that_are_null_in_mindie() -> None:
    delta = TextDelta(
        tokens=(Token(2, "</s>", -0.5, special=True),),
        finish_reason=FinishReason.EOS_TOKEN,
        prompt_tokens=(Token(1, "<s>"), Token(7, "é", -0.25)),
    )
    assert written(MindieJsonFormatter(request(), rendered(2)), delta) == (
        '{"details":{"finish_reason":"eos_token","generated_tokens":1,'
        '"prefill":[{"id":1,"logprob":null,"text":"<s>"},{"id":7,"logprob":-0.25,"text":"é"}],"seed":42,'
        '"tokens":[{"id":2,"logprob":-0.5,"special":true,"text":"</s>"}]},"generated_text":""}'
    )
    assert '"token":{"id":2,"text":"</s>","logprob":-0.5,"special":true}' in written(
        MindieSseFormatter(request(), rendered(2)), delta
    )


def test_prompt_is_prepended() -> None:
    for formatter in (MindieJsonFormatter, MindieSseFormatter):
        body = written(formatter(request(return_full_text=True), rendered(6)), *example_deltas())
        assert f'"generated_text":"Hello{DOCUMENT["generated_text"]}"' in body


def test_most_probable_of_several_answers() -> None:
    """MindIE's body cannot request several answers, but LMI's can, with `option.output_formatter=mindie_json`."""
    several = GenerationRequest(request_id="r", prompts=(Prompt("Hello"),), sampling_params=SamplingParams(n=2))
    parts = [
        TextDelta(index=index, tokens=(Token(7, text, logprob),), text=text, finish_reason=FinishReason.LENGTH)
        for index, (text, logprob) in enumerate((("worse", -2.0), ("better", -1.0)))
    ]
    assert written(MindieJsonFormatter(several, rendered(1)), *parts) == '{"generated_text":"better"}'


def test_request_of_the_example() -> None:
    parsed = MINDIE.parse(Payload(data=(EXAMPLES / "request.json").read_bytes(), request_id="r"))
    seed = parsed.request.sampling_params.seed
    assert seed is not None
    assert 0 < seed <= MOST_SEED
    assert parsed.formatter is MindieJsonFormatter
    assert parsed.request == GenerationRequest(
        request_id="r",
        prompts=(Prompt("My name is Olivier and I"),),
        details=True,
        decoder_input_details=True,
        has_random_seed=True,
        sampling_params=SamplingParams(
            max_tokens=20,
            repetition_penalty=1.03,
            temperature=0.5,
            top_k=10,
            top_p=0.95,
            seed=seed,
            logprobs=0,
            prompt_logprobs=0,
            include_stop_str_in_output=True,
        ),
    )


# Defaults


@pytest.mark.parametrize("parameters", [None, {}, dict.fromkeys(REQUEST["parameters"])])
def test_defaults(parameters: object) -> None:
    expected = SamplingParams(max_tokens=20, temperature=0.0, include_stop_str_in_output=True)
    request = GenerationRequest(request_id="r", prompts=(Prompt("My name is"),), sampling_params=expected)
    assert parse(parameters, stream=None).request == request
    assert MINDIE.parse(Payload(data=b'{"inputs": "My name is"}', request_id="r")).request == request


def test_plain_text_has_the_same_defaults() -> None:
    parsed = MINDIE.parse(Payload(data=b"My name is", request_id="r", content_type="text/plain"))
    assert parsed.request == parse().request


def test_details_always_include_a_seed() -> None:
    for parameters in ({"details": True}, {"decoder_input_details": True}, {"details": True, "do_sample": True}):
        seeds = {params(parameters).seed for _ in range(3)}
        assert len(seeds) == 3
        assert all(seed is not None and 0 < seed <= MOST_SEED for seed in seeds)
    assert params({"details": True, "seed": 5}).seed == 5, "also for greedy decoding, which does not use it"
    assert params({"details": True, "do_sample": True, "seed": 5}).seed == 5


def test_sagemakers_streaming_api_streams_unless_the_body_says_no() -> None:
    bodies = {
        b'{"inputs": "a"}': True,
        b'{"inputs": "a", "stream": null}': True,
        b'{"inputs":"a","stream":false}': False,
    }
    for data, expected in bodies.items():
        assert MINDIE.parse(Payload(data=data, request_id="r", stream=True)).request.stream is expected


def test_undocumented_fields_are_ignored_and_named() -> None:
    """Null means absent, so clients that send every field get no warnings."""
    parsed = parse({"best_of": 2, "stop": ["x"], "typical_p": None, "top_n_tokens": "y", "x": 1, "top_k": 3}, model="m")
    assert parsed.request.ignored_parameters == ("model", "best_of", "stop", "top_n_tokens", "x")
    assert parsed.request.sampling_params.stop == ()
    assert parsed.request.sampling_params.top_k == 3


# Limits


LIMITED = MindieDialect(ServingProperties(max_input_tokens=400))


def check(tokens: int = 1, parameters: object = None, dialect: MindieDialect = LIMITED, **body: object) -> None:
    """All checks before the engine is involved. maxSeqLen is 512, maxIterTimes 112 and vocabSize 1000."""
    parsed = parse(parameters, dialect, **body)
    parsed.check_length(parsed.request, 0, tokens, MODEL)


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [
        ({"max_new_tokens": 1}, {"max_new_tokens": 0}),
        ({"max_new_tokens": 112}, {"max_new_tokens": 113}),
        ({"max_new_tokens": 112}, {"max_new_tokens": 2**40}),
        ({"repetition_penalty": 0.01}, {"repetition_penalty": 0}),
        ({"repetition_penalty": 10}, {"repetition_penalty": -1}),
        ({"seed": 1}, {"seed": 0}),
        ({"seed": 1}, {"seed": -1}),
        ({"seed": MOST_SEED}, {"seed": MOST_SEED + 1}),
        ({"temperature": 0.01}, {"temperature": 0}),
        ({"temperature": 100}, {"temperature": -1}),
        ({"top_k": 1}, {"top_k": 0}),
        ({"top_k": 1}, {"top_k": -1}),
        ({"top_k": 999}, {"top_k": 1000}),
        ({"top_k": 999}, {"top_k": 2**31}),
        ({"top_p": 0.01}, {"top_p": 0}),
        ({"top_p": 0.99}, {"top_p": 1}),
        ({"truncate": 1}, {"truncate": 0}),
        ({"truncate": 400}, {"truncate": 401}),
        ({"details": True}, {"details": "true"}),
        ({"do_sample": True}, {"do_sample": 1}),
        ({"return_full_text": True}, {"return_full_text": "yes"}),
        ({"decoder_input_details": True}, {"decoder_input_details": 0}),
    ],
)
def test_limits_of_parameters(parameters: dict[str, Any], refused: dict[str, Any]) -> None:
    check(parameters=parameters)
    with pytest.raises(InvalidRequest) as caught:
        check(parameters=refused)
    [name] = refused
    assert name in str(caught.value)
    assert LIMITED.error(caught.value).status == 422


def test_limits_of_inputs() -> None:
    check(inputs="字" * 16_000)
    check(tokens=400)
    for refused in ("字" * 16_001, "", None, ["a"]):
        with pytest.raises(InvalidRequest, match="inputs"):
            check(inputs=refused)
    with pytest.raises(InvalidRequest, match=r"^`inputs` tokens must be > 0 and <= 400\. Given: 401$"):
        check(tokens=401)


def test_streams_do_not_support_prompt_tokens() -> None:
    check(parameters={"decoder_input_details": True}, stream=False)
    with pytest.raises(InvalidRequest, match="`decoder_input_details` == true is not supported when streaming"):
        check(parameters={"decoder_input_details": True}, stream=True)


def test_without_a_prompt_limit_the_answer_gets_the_remaining_context() -> None:
    check(100, {"max_new_tokens": 412}, MINDIE)
    with pytest.raises(InvalidRequest, match=r"^`max_new_tokens` must be > 0 and <= 412\. Given: 413$"):
        check(100, {"max_new_tokens": 413}, MINDIE)


def test_default_number_of_new_tokens_is_limited_by_the_context() -> None:
    parsed = parse(dialect=LIMITED)
    parsed.check_length(parsed.request, 0, 400, capabilities(max_model_len=401))


# The option


def test_dialects_by_option() -> None:
    def served(**options: Any) -> tuple[type[Dialect], type[Dialect]]:
        apis = ServedApis(Context(properties=ServingProperties(**options)))
        return type(apis.root.dialect), type(apis.invocations.native)

    assert served() == (CompatDialect, LmiDialect)
    assert served(dialect="mindie") == (MindieDialect, LmiDialect)
    assert served(dialect="mindie", tgi_compat=True) == (MindieDialect, MindieDialect)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    properties = (
        "option.rolling_batch=echo\noption.dialect=mindie\noption.tgi_compat=true\n"
        "option.echo_faults=true\noption.max_model_len=512\noption.max_input_tokens=400\n"
    )
    server = Server(tmp_path_factory.mktemp("mindie") / "m", properties)
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("path", ["/", "/invocations", "/predictions/m", "/models/m/invoke"])
def test_answers(server: Server, path: str) -> None:
    """The example request without streaming."""
    answer = server.invoke(REQUEST, path=path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    body = answer.json()
    assert compact(body) == answer.text
    assert list(body) == list(DOCUMENT)
    assert list(body["details"]) == list(DOCUMENT["details"])
    assert [token["text"] for token in body["details"]["prefill"]] == list(REQUEST["inputs"])
    assert (body["details"]["finish_reason"], body["details"]["generated_tokens"]) == ("length", 20)
    assert 0 < body["details"]["seed"] <= MOST_SEED
    assert body["details"]["tokens"][0] == {"id": ord("M"), "logprob": -0.5, "special": False, "text": "M"}
    assert body["generated_text"] == REQUEST["inputs"][:20]


@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_streams(server: Server, path: str) -> None:
    answer = server.invoke({"inputs": "ab", "parameters": {"details": True, "seed": 7}, "stream": True}, path=path)
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.text == (
        'data: {"token":{"id":97,"text":"a","logprob":-0.5,"special":false},"generated_text":null,"details":null}\n\n'
        'data: {"token":{"id":98,"text":"b","logprob":-0.5,"special":false},"generated_text":null,"details":null}\n\n'
        'data: {"token":{"id":256,"text":"<|endoftext|>","logprob":-0.5,"special":true},"generated_text":"ab",'
        '"details":{"finish_reason":"eos_token","generated_tokens":3,"seed":7}}\n\n'
    )


def test_other_routes_use_tgis_format(server: Server) -> None:
    body = {"inputs": "x" * 30}
    assert server.invoke(body, path="/generate").json() == {"generated_text": "x" * 30}
    assert server.invoke(body, path="/").json() == {"generated_text": "x" * 20}


def test_limits_of_the_model(server: Server) -> None:
    """The echo backend's vocabulary has one token per byte and an end token."""
    for parameters, message in (
        ({"top_k": 257}, "`top_k` must be > 0 and <= 256. Given: 257"),
        ({"max_new_tokens": 113}, "`max_new_tokens` must be > 0 and <= 112. Given: 113"),
    ):
        answer = server.invoke({"inputs": "a", "parameters": parameters}, path="/")
        assert answer.status_code == 422
        assert answer.json() == {"error": f"Input validation error: {message}", "error_type": "validation"}
    assert server.invoke({"inputs": "a", "parameters": {"top_k": 256}}, path="/").status_code == 200
    assert server.invoke({"inputs": "a" * 400, "parameters": {"max_new_tokens": 112}}, path="/").status_code == 200


def test_truncate_keeps_the_end(server: Server) -> None:
    answer = server.invoke({"inputs": "abcdef", "parameters": {"truncate": 2}}, path="/")
    assert answer.json() == {"generated_text": "ef"}


def test_ignored_parameters_have_a_header(server: Server) -> None:
    answer = server.invoke({"inputs": "a", "parameters": {"stop": ["a"], "best_of": None}}, path="/")
    assert (answer.json(), answer.headers["x-lmi-ignored-parameters"]) == ({"generated_text": "a"}, "stop")


def test_failure_during_a_stream_is_the_last_event(server: Server) -> None:
    answer = server.invoke({"inputs": "a RAISE@3", "stream": True}, path="/")
    *events, last = json_events(answer.text)
    assert [event["token"]["text"] for event in events] == ["a", " "]
    assert last["error_type"] == "generation"


def test_without_tgi_compat_invocations_speaks_lmi(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.dialect=mindie\n")
    body = {"inputs": "hi", "parameters": {"return_full_text": True}}
    assert server.invoke(body, path="/").text == '{"generated_text":"hihi"}'
    assert server.invoke({"inputs": "hi"}).text == '{"generated_text": "hi"}'


VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just([])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(
    st.fixed_dictionaries(
        {"inputs": st.text(max_size=10)},
        optional={
            "parameters": VALUES
            | st.dictionaries(
                st.sampled_from(TgiParameters.__struct_fields__) | st.text(max_size=3), VALUES, max_size=4
            ),
            "stream": VALUES,
        },
    )
    | VALUES
    | st.dictionaries(st.text(max_size=3), VALUES)
)
def test_no_body_causes_a_server_error(server: Server, body: object) -> None:
    answer = requests.post(
        server.url + "/", data=json.dumps(body), headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert set(answer.json()) == {"error", "error_type"}


@given(st.binary(max_size=40) | st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_value_is_parsed_or_rejected(value: object) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        MINDIE.parse(Payload(data=data, request_id="r"))
    except InvalidRequest as error:
        response = MINDIE.error(error)
        assert set(json.loads(response.body)) == {"error", "error_type"}
