"""Answers that a second engine reads after they have been sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from byte_model import write_byte_model
from engine_thread import Engine
from facts import raises, says
from model_store import StoreServer
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, StartServer
from tokenizers import Tokenizer, models
from waiting import Watch, still_running, wait_until

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import BeamSearchParams, EncodedPrompt, GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.engine.messages import SequenceOutput
from lmi_handlers.metrics.catalogue import SHADOW_ANSWERS
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.metrics.shadow import ShadowOutcome
from lmi_handlers.preflight.checks import mistakes
from lmi_handlers.preflight.configuration import examine_configuration
from lmi_handlers.serving.shadow import Sample, Shadow, _lot, compared, is_greedy
from lmi_handlers.text.bundle import TOKENIZER_FILE
from lmi_handlers.text.vocabularies import difference

ECHO = "option.rolling_batch=echo\n"
GREEDY = SamplingParams(temperature=0.0)


def request_of(params: SamplingParams = GREEDY, **fields: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompts=(Prompt("x"),), sampling_params=params, **fields)


def output(*token_ids: int, logprobs: list[float] | None = None) -> SequenceOutput:
    return SequenceOutput(1, 0, TokenOutput(request_id="r", token_ids=list(token_ids), logprobs=logprobs), 0.0)


# In one process


@pytest.fixture
def room() -> list[bool]:
    """Whether the model's own engines have room."""
    return [True]


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[RequestMetrics]:
    metrics = RequestMetrics(tmp_path / "metrics", "m")
    yield metrics
    metrics.close()


@pytest.fixture
def shadow(engine: Engine, metrics: RequestMetrics, room: list[bool]) -> Iterator[Shadow]:
    properties = ServingProperties(shadow_share=1.0)
    shadow = Shadow(properties, engine.path, metrics, lambda: room[0])
    shadow.start()
    wait_until(lambda: shadow.sample(request_of(), [EncodedPrompt([1])], engine.ready.capabilities) is not None)
    yield shadow
    shadow.close()


@pytest.fixture
def outcomes(metrics: RequestMetrics) -> Callable[[], dict[str, float]]:
    """How many answers had each outcome. Those that came before the shadow engine was ready do not count."""

    def count() -> dict[str, float]:
        cells, _ = metrics.values()
        values = dict(zip(SHADOW_ANSWERS.label_values, cells[SHADOW_ANSWERS.first :], strict=False))
        return {name: value for name, value in values.items() if value and name != ShadowOutcome.NOT_READY}

    return count


def sample_of(shadow: Shadow, engine: Engine, prompt: bytes, answer: bytes) -> Sample:
    sample = shadow.sample(request_of(), [EncodedPrompt(list(prompt))], engine.ready.capabilities)
    assert sample is not None
    assert sample.request.sampling_params == msgspec.structs.replace(GREEDY, logprobs=0)
    sample.feed(output(*answer, logprobs=[-0.5] * len(answer)))
    return sample


def test_what_waits_is_bounded_and_is_compared_once_there_is_room(
    shadow: Shadow, engine: Engine, room: list[bool], outcomes: Callable[[], dict[str, float]]
) -> None:
    room[0] = False
    for _ in range(20):
        sample_of(shadow, engine, b"Hello", b"Hello").end()
    assert outcomes() == {"dropped": 4}
    room[0] = True
    wait_until(lambda: outcomes() == {"dropped": 4, "compared": 16})


def test_a_comparison_gives_way_and_is_made_again(
    shadow: Shadow, engine: Engine, room: list[bool], outcomes: Callable[[], dict[str, float]]
) -> None:
    """The prompt keeps the echo engine from answering, once: the fault is taken out of a sample that waits."""
    sample = sample_of(shadow, engine, b"HANG@1 ", b"Hello")
    sample.end()
    wait_until(lambda: engine._loop.running == 1)
    room[0] = False
    wait_until(lambda: engine._loop.running == 0)
    assert outcomes() == {}
    sample.prompt = list(b"Hello")
    room[0] = True
    wait_until(lambda: outcomes() == {"compared": 1})


def test_a_shadow_that_refuses_or_fails_goes_on_with_the_next(
    shadow: Shadow, engine: Engine, outcomes: Callable[[], dict[str, float]]
) -> None:
    for prompt in (b"REFUSE@1 ", b"RAISE@1 ", b"Hello "):
        sample_of(shadow, engine, prompt, b"Hello").end()
    wait_until(lambda: outcomes() == {"failed": 2, "compared": 1})


def test_an_answer_without_the_log_probabilities_that_were_asked_for(
    shadow: Shadow, engine: Engine, outcomes: Callable[[], dict[str, float]]
) -> None:
    """It would count as one that was certain."""
    sample = sample_of(shadow, engine, b"Hello", b"")
    sample.feed(output(1))
    sample.end()
    wait_until(lambda: outcomes() == {"failed": 1})


def test_a_token_that_the_shadow_does_not_know(
    shadow: Shadow, engine: Engine, outcomes: Callable[[], dict[str, float]]
) -> None:
    """The vocabulary of the model may be larger."""
    sample = sample_of(shadow, engine, b"Hello", b"")
    sample.feed(output(257, logprobs=[-0.5]))
    sample.end()
    wait_until(lambda: outcomes() == {"failed": 1})


def test_long_and_empty_answers_are_left_out(
    shadow: Shadow, engine: Engine, outcomes: Callable[[], dict[str, float]]
) -> None:
    sample_of(
        shadow, engine, b"x" * 4000, b"y" * 96
    ).end()  # the model's length is 4096, and one token more is generated
    sample_of(shadow, engine, b"x", b"").end()
    assert outcomes() == {"too_long": 2}
    sample_of(shadow, engine, b"x" * 4000, b"y" * 95).end()
    wait_until(lambda: outcomes() == {"too_long": 2, "compared": 1})


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        (EncodedPrompt([1], adapter="french"), {}),
        (EncodedPrompt([1], cache_salt="tenant"), {}),
        (EncodedPrompt([1]), {"pooling_params": PoolingParams(task="embed")}),
        (EncodedPrompt([1]), {"beam_search": BeamSearchParams(num_beams=2)}),
    ],
)
def test_requests_that_are_left_out(
    shadow: Shadow, engine: Engine, prompt: EncodedPrompt, fields: dict[str, Any]
) -> None:
    assert shadow.sample(request_of(**fields), [prompt], engine.ready.capabilities) is None


def test_a_repetition_is_chosen_as_the_request_was_and_a_share_of_all_others() -> None:
    prompts = [EncodedPrompt([number]) for number in range(1000)]
    lots = [_lot(prompt, 7000.0) for prompt in prompts]
    assert lots == [_lot(prompt, 7100.0) for prompt in prompts]
    assert lots != [_lot(prompt, 7300.0) for prompt in prompts]
    assert 150 < sum(lot < 0.2 for lot in lots) < 250
    assert all(0 <= lot < 1 for lot in lots)


def test_the_client_gets_log_probabilities_only_if_it_has_asked(shadow: Shadow, engine: Engine) -> None:
    given = output(5, logprobs=[-0.25])
    (prompt,) = [EncodedPrompt([1, 2])]
    quiet = shadow.sample(request_of(), [prompt], engine.ready.capabilities)
    asking = shadow.sample(request_of(SamplingParams(logprobs=2)), [prompt], engine.ready.capabilities)
    without = msgspec.structs.replace(engine.ready.capabilities, unsupported=("logprobs",))
    unable = shadow.sample(request_of(), [prompt], without)
    assert quiet is not None
    assert asking is not None
    assert unable is not None
    assert [one.request.sampling_params.logprobs for one in (quiet, asking, unable)] == [0, 2, None]
    assert quiet.feed(given) == output(5)
    assert asking.feed(given) is given
    assert quiet.logprobs == asking.logprobs == [-0.25]


def test_an_answer_that_is_continued_comes_after_its_beginning(shadow: Shadow, engine: Engine) -> None:
    request = request_of(generated=(3, 4))
    sample = shadow.sample(request, [EncodedPrompt([1, 2])], engine.ready.capabilities)
    assert sample is not None
    assert sample.prompt == [1, 2, 3, 4]


def test_figures_of_a_comparison(shadow: Shadow, engine: Engine) -> None:
    sample = sample_of(shadow, engine, b"ab", bytes([5, 6, 7, 8]))
    shadows = TokenOutput(
        request_id="r",
        token_ids=[9],
        prompt_logprobs=[None, -9.0, -0.5, -1.5, -0.5, -float("inf")],
        prompt_top_logprobs=[None, [(1, -0.1)], [(5, -0.5)], [(1, -0.1)], [(7, -0.5)], [(1, 0.0)]],
    )
    comparison = compared(sample, shadows, 2.0)
    assert (comparison.tokens, comparison.agreeing, comparison.read_tokens) == (4, 2, 6)
    assert (comparison.shadow_nats, comparison.model_nats) == (102.5, 2.0)
    assert comparison.fields == {
        "sampling": "greedy",
        "tokens": 4,
        "agreement": 0.5,
        "divergence": 25.125,
        "loss": 25.625,
        "read_tokens": 6,
        "shadow_ms": 2000.0,
    }
    sample.has_logprobs = False
    assert compared(sample, shadows, 2.0).fields["divergence"] is None


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 1.0},
        {"repetition_penalty": 1.1},
        {"min_tokens": 1},
        {"logit_bias": {1: 2.0}},
        {"allowed_token_ids": (1,)},
        {"structured_outputs": StructuredOutputs(json_object=True)},
    ],
)
def test_greedy_is_what_takes_the_most_probable_token(changed: dict[str, Any]) -> None:
    assert is_greedy(GREEDY)
    assert not is_greedy(msgspec.structs.replace(GREEDY, **changed))


# Vocabularies


def vocabulary(directory: Path, tokens: list[str]) -> Path:
    directory.mkdir()
    model = models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=tokens[0])
    Tokenizer(model).save(str(directory / TOKENIZER_FILE))
    return directory


def test_vocabularies_may_differ_in_length_only(tmp_path: Path) -> None:
    one = vocabulary(tmp_path / "one", ["a", "b", "c"])
    assert difference(one, vocabulary(tmp_path / "longer", ["a", "b", "c", "d"])) == ""
    assert says(difference(one, vocabulary(tmp_path / "other", ["a", "c", "b"])), "1 'b' 'c'")
    assert says(difference(vocabulary(tmp_path / "short", ["a"]), one), "1 3")


# Before the start


def refusals(
    tmp_path: Path, shadow: str, own: str = ECHO, *, code: str = "", environ: dict[str, str] | None = None
) -> str:
    """The mistakes in the configuration of a model, which may have a model.py, and its shadow."""
    directory = tmp_path / "m"
    (directory / "shadow").mkdir(parents=True)
    (directory / "serving.properties").write_text(f"{own}option.shadow_model=shadow\n")
    (directory / "shadow" / "serving.properties").write_text(shadow)
    if code:
        (directory / "model.py").write_text(code)
    given = {"LMI_MODEL_DIR": str(directory), "LMI_CACHE_DIR": str(tmp_path / "cache")} | (environ or {})
    return "\n".join(mistakes(examine_configuration(given), given))


def test_options_of_the_environment_are_the_models_only(tmp_path: Path) -> None:
    assert refusals(tmp_path, ECHO, environ={"OPTION_MAX_MODEL_LEN": "rubbish"}).count("rubbish") == 1


@pytest.mark.parametrize(
    ("shadow", "facts"),
    [
        ("option.max_model_len=rubbish\n", "option.shadow_model: option.max_model_len"),
        (f"{ECHO}option.task=text-embedding\n", "option.shadow_model: shadow text-embedding"),
        ("option.task=text-classification\noption.model_id=here\n", "option.shadow_model: code tasks"),
    ],
)
def test_shadows_that_are_refused(tmp_path: Path, shadow: str, facts: str) -> None:
    assert says(refusals(tmp_path, shadow), facts)


def test_models_that_have_no_shadow(tmp_path: Path) -> None:
    assert says(refusals(tmp_path / "pooling", ECHO, f"{ECHO}option.task=text-embedding\n"), "text-embedding model")
    code = refusals(tmp_path / "code", ECHO, "", code="def handle(inputs):\n    return None\n")
    assert says(code, "option.shadow_model code")


def test_a_shadow_is_a_folder_with_properties_and_has_no_shadow(tmp_path: Path) -> None:
    environ = {"LMI_MODEL_DIR": str(tmp_path), "OPTION_ROLLING_BATCH": "echo", "OPTION_SHADOW_MODEL": "nowhere"}
    with raises(ConfigError, "option.shadow_model=nowhere OPTION_SHADOW_MODEL"):
        examine_configuration(environ)
    with raises(ConfigError, "option.shadow_model: option.shadow_model=."):
        refusals(tmp_path, "option.shadow_model=.\n")


def test_secure_mode_allows_no_shadow(tmp_path: Path) -> None:
    secure = {"SAGEMAKER_SECURE_MODE": "true", "SAGEMAKER_SECURITY_CONTROLS": "DISALLOW_PICKLE_FILES"}
    assert says(refusals(tmp_path, ECHO, environ=secure), "option.shadow_model secure")


# A whole server


def figures(server: Server) -> dict[str, float]:
    """The shadow's series that are not zero."""
    page = requests.get(f"{server.url}/metrics", headers={"Connection": "close"}, timeout=60).text
    return {
        " ".join([sample.name.removeprefix("lmi_shadow_"), *_without_engine(sample.labels)]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("lmi_shadow_") and "seconds" not in sample.name and sample.value
    }


def _without_engine(labels: dict[str, str]) -> list[str]:
    """With several models, all series name the model and an engine, which is 0."""
    return [value for name, value in labels.items() if name != "engine"]


def requests_of(server: Server) -> float:
    """How many requests it has answered."""
    page = requests.get(f"{server.url}/metrics", headers={"Connection": "close"}, timeout=60).text
    return float(re.findall(r"^tgi_request_success (.*)$", page, re.MULTILINE)[0])


def start_with_shadow(start: StartServer, tmp_path: Path, shadow: str, own: str = ECHO) -> Server:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "serving.properties").write_text(shadow)
    return start(f"{own}option.shadow_model={tmp_path / 'shadow'}\noption.shadow_share=1\n")


BODIES = [
    {"inputs": "Hello", "parameters": {"max_new_tokens": 9, "details": True}},
    {"inputs": "Hello", "parameters": {"max_new_tokens": 9}, "stream": True},
    {"inputs": "Hello", "parameters": {"max_new_tokens": 9, "do_sample": True, "temperature": 0.5}},
]


def test_equal_engines_agree_and_answers_are_what_they_were(
    start_server: StartServer, echo_server: Server, tmp_path: Path
) -> None:
    server = start_with_shadow(start_server, tmp_path, ECHO)
    wait_until(lambda: server.invoke(BODIES[0]).ok and "answers_total compared" in figures(server))
    for body in BODIES:
        assert server.invoke(body).content == echo_server.invoke(body).content
    answered = requests_of(server)
    salted = {"model": "m0", "prompt": "Hello", "cache_salt": "tenant"}
    assert server.invoke(salted, path="/v1/completions").ok
    wait_until(lambda: sum(value for name, value in figures(server).items() if "answers_total" in name) == answered)
    found = figures(server)
    for sampling in ("greedy", "sampled"):
        assert found[f"agreeing_tokens_total {sampling}"] == found[f"tokens_total {sampling}"]
        assert found[f"nats_total {sampling}"] == found[f"model_nats_total {sampling}"]
    lines = [json.loads(line) for line in server.log.splitlines() if '"compared with the shadow"' in line]
    assert {line["agreement"] for line in lines} == {1.0}
    assert {line["divergence"] for line in lines} == {0.0}
    process = server.shadow()
    assert process is not None
    server.stop()
    assert still_running([process]) == []


def test_a_model_of_several_has_its_own_shadow(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "serving.properties").write_text(ECHO)
    models = {"plain": ECHO, "shadowed": f"{ECHO}option.shadow_model={shadow}\noption.shadow_share=1\n"}
    server = StoreServer(tmp_path / "server", models)
    try:
        server.wait_ready()
        wait_until(lambda: server.generate("shadowed").ok and "answers_total shadowed compared" in figures(server))
        assert server.generate("plain").ok
        assert not any("plain" in name for name in figures(server))
        (process,) = [engine for engine in server.engines() if engine.nice() == 19]
        assert server.ask("DELETE", "/models/shadowed").ok
        assert still_running([process]) == []
        assert server.generate("plain").ok
    finally:
        server.stop()


def test_a_shadow_that_dies_hangs_or_does_not_load_changes_nothing(start_server: StartServer, tmp_path: Path) -> None:
    """The model itself does not know the words for faults."""
    own = f"{ECHO}option.predict_timeout=2\n"
    server = start_with_shadow(start_server, tmp_path, f"{ECHO}option.echo_faults=true\noption.stall_timeout=2\n", own)
    wait_until(lambda: server.invoke(BODIES[0]).ok and "answers_total compared" in figures(server))
    with Watch(server) as watch:
        first = server.shadow()
        assert first is not None
        for fault in ("DIE@1 ", "GRIP@1 "):
            ended = server.shadow()
            body = {"inputs": fault, "parameters": {"max_new_tokens": len(fault)}}
            assert server.invoke(body).json()["generated_text"] == fault
            wait_until(lambda ended=ended: server.shadow() not in (None, ended))  # type: ignore[misc]
            compared = figures(server)["answers_total compared"]
            wait_until(
                lambda compared=compared: (  # type: ignore[misc]
                    server.invoke(BODIES[0]).ok and figures(server)["answers_total compared"] > compared
                )
            )
    assert {answer.status_code for answer in watch.answers} == {200}
    assert figures(server)["answers_total failed"] >= 2


@pytest.mark.parametrize(
    ("shadow", "cause"),
    [
        (f"{ECHO}option.echo_fault=raise_in_load\n", "raise_in_load"),
        (f"{ECHO}option.model_id={{model}}\n", "option.shadow_model 0"),
    ],
    ids=["fails", "tokenizer"],
)
def test_a_shadow_that_does_not_load_is_reported(
    start_server: StartServer, tmp_path: Path, shadow: str, cause: str
) -> None:
    """One has another tokenizer, which is only known when it is loaded: the model has no folder with a tokenizer."""
    (model := tmp_path / "model").mkdir()
    write_byte_model(model)
    server = start_with_shadow(start_server, tmp_path, shadow.format(model=model))
    wait_until(lambda: '"the shadow engine does not run"' in server.log, 120)
    (line,) = (json.loads(line) for line in server.log.splitlines() if '"the shadow engine does not run"' in line)
    assert says(line["cause"], cause)
    assert line["restart_in"] == 60
    assert server.invoke(BODIES[0]).ok
    assert server.ping().status_code == 200
    wait_until(lambda: "answers_total not_ready" in figures(server))


# Real engines

STORY = {"inputs": "Once upon a time, there was a", "parameters": {"max_new_tokens": 100}}


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize(
    ("shadow", "agreement", "divergence"),
    [
        ("option.dtype=fp32\n", (0.99, 1.0), (-0.001, 0.001)),
        ("option.model_id={other}\n", (0.0, 0.1), (5.0, 20.0)),
    ],
    ids=["equal", "other weights"],
)
def test_weights_and_precisions(
    start_server: StartServer,
    tmp_path: Path,
    tiny_llama: Path,
    shadow: str,
    agreement: tuple[float, float],
    divergence: tuple[float, float],
) -> None:
    """The other weights are random, so their log probabilities are near those of a uniform choice from 49,152 tokens."""
    openvino = "option.rolling_batch=openvino\n"
    server = start_with_shadow(
        start_server, tmp_path, openvino + shadow.format(other=tiny_llama), f"{openvino}option.dtype=fp32\n"
    )
    wait_until(lambda: server.invoke(STORY).ok and "answers_total compared" in figures(server), 240)
    found = figures(server)
    tokens = found["tokens_total greedy"]
    assert agreement[0] <= found.get("agreeing_tokens_total greedy", 0.0) / tokens <= agreement[1]
    assert divergence[0] <= (found["nats_total greedy"] - found["model_nats_total greedy"]) / tokens <= divergence[1]
