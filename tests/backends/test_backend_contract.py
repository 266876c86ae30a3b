"""What every backend owes the engine loop. A new engine is a new line in `ENGINES`."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import standin

from backends import load_backend_class
from backends.base import Backend, ModelFiles
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.limits import check_sampling_params
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.cache_dir import default_cache_dir
from lmi_handlers.engine.model_store import resolve_model
from lmi_handlers.text.bundle import build_byte_bundle, build_text_bundle


class Engine(NamedTuple):
    """A backend to hold to the contract, the options that make it exact, and the marks of its tests.

    `standin` is the engine's library where `tests/standins` takes its place unless it is installed. `tiny` says that the
    model is one of random weights, else it is the default model.
    """

    name: str
    options: Mapping[str, Any] = MappingProxyType({})
    marks: tuple[pytest.MarkDecorator, ...] = (pytest.mark.model,)
    standin: str | None = None
    tiny: bool = False

    @property
    def id(self) -> str:
        return f"{self.name}, tiny model" if self.tiny else self.name


ENGINES = [
    Engine("echo", marks=()),
    Engine("transformers", options={"dtype": "fp32"}, tiny=True),
    Engine("transformers", options={"dtype": "fp32"}, marks=(pytest.mark.model, pytest.mark.long)),
    Engine(
        "vllm",
        options={"dtype": "fp32", "enforce_eager": True, "extra": {"kv_cache_memory_bytes": "256M"}},
        marks=(pytest.mark.model, pytest.mark.needs("vllm")),
    ),
    Engine("lmi_dist", standin="lmi_dist"),
    Engine("tensorrt_llm", standin="tensorrt_llm"),
]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # engines warn of the libraries that they use themselves
    pytest.mark.usefixtures("without_flask"),
]

MAX_MODEL_LEN = 96
PROMPTS = [
    list(text) for text in (b"Hello", b"The capital of France is", b"1, 2, 3, 4,", b"a", b"def f(x):\n    return")
]
"""Token ids of the byte tokenizer; a real model finds these strange, but they are in its vocabulary."""


class Subject:
    """A loaded backend, and the ways in which the tests drive it."""

    def __init__(self, backend: Backend, eos_token_ids: tuple[int, ...]) -> None:
        self.backend = backend
        self.eos_token_ids = eos_token_ids
        self._numbers = itertools.count()
        self._alone: dict[int, list[int]] = {}

    def add(self, prompt: list[int], **params: Any) -> str:
        """Start a sequence, greedy and of a fixed length unless `params` say otherwise. Returns its id."""
        request_id = f"r{next(self._numbers)}"
        sampling_params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | params)
        self.backend.add_request(
            TokenRequest(request_id=request_id, prompt_token_ids=list(prompt), sampling_params=sampling_params)
        )
        return request_id

    def steps_until_end(
        self, *request_ids: str, before: list[TokenOutput] | None = None
    ) -> dict[str, list[TokenOutput]]:
        """Step until each of these has ended; whatever else runs goes on. Checks that nothing follows an end."""
        outputs = list(before or [])
        for _ in range(10_000):
            ended = {output.request_id for output in outputs if output.finish_reason is not None}
            if set(request_ids) <= ended:
                break
            outputs += self.backend.step()
        else:
            raise AssertionError("a sequence never ended")
        return {request_id: of(outputs, request_id) for request_id in request_ids}

    def generate(self, prompt: list[int], **params: Any) -> list[TokenOutput]:
        request_id = self.add(prompt, **params)
        return self.steps_until_end(request_id)[request_id]

    def alone(self, prompt: int, max_tokens: int) -> list[int]:
        """The greedy tokens of `PROMPTS[prompt]` with the engine for itself; at most 12."""
        if prompt not in self._alone:
            self._alone[prompt] = tokens(self.generate(PROMPTS[prompt], max_tokens=12))
        return self._alone[prompt][:max_tokens]


def of(outputs: list[TokenOutput], request_id: str) -> list[TokenOutput]:
    """One sequence's outputs, checked for what holds of all of them."""
    own = [output for output in outputs if output.request_id == request_id]
    assert all(output.finish_reason is None for output in own[:-1]), "something came after the end"
    of_prompt = [(output.prompt_logprobs, output.prompt_top_logprobs) for output in own]
    assert of_prompt[1:] == [(None, None)] * len(own[1:]), "prompt logprobs come once, with the first output"
    assert all(output.error is None for output in own)
    return own


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


@pytest.fixture(
    scope="module",
    params=[pytest.param(engine, id=engine.id, marks=engine.marks) for engine in ENGINES],
)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    engine: Engine = request.param
    model: Path | None = request.getfixturevalue("tiny_llama") if engine.tiny else None
    if engine.standin is None or importlib.util.find_spec(engine.standin) is not None:
        yield from load(engine, model, tmp_path_factory.mktemp(engine.name))
    else:
        with standin(engine.standin):
            yield from load(engine, model, tmp_path_factory.mktemp(engine.name))


def load(engine: Engine, model: Path | None, bundle_dir: Path) -> Iterator[Subject]:
    backend_class = load_backend_class(engine.name)
    phases: list[str] = []
    path: Path | None = None
    if backend_class.needs_model:
        cache_dir = default_cache_dir(os.environ)
        path = model or resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=phases.append)
        bundle = build_text_bundle(path, bundle_dir, trust_remote_code=False)
    else:
        bundle = build_byte_bundle(bundle_dir)
    files = ModelFiles(path=path, eos_token_ids=bundle.eos_token_ids, vocab_size=bundle.vocab_size)
    properties = ServingProperties(max_model_len=MAX_MODEL_LEN, max_rolling_batch_size=8, **engine.options)
    backend = backend_class.load(files, properties, phases.append)
    assert all(phases), "a phase is a few words"
    yield Subject(backend, bundle.eos_token_ids)
    backend.close()


@pytest.fixture
def subject(loaded: Subject) -> Iterator[Subject]:
    """A backend with nothing to do; it must be so again after the test."""
    yield loaded
    assert loaded.backend.step() == []


# Description


def test_capabilities(subject: Subject) -> None:
    capabilities = subject.backend.capabilities
    assert capabilities.backend
    assert capabilities.max_model_len == MAX_MODEL_LEN
    assert capabilities.vocab_size > max(subject.eos_token_ids)
    assert capabilities.max_logprobs >= 0
    assert set(capabilities.unsupported) <= {*SamplingParams.__struct_fields__, "adapters"}


# What is generated


def test_greedy_is_deterministic(subject: Subject) -> None:
    for number, prompt in enumerate(PROMPTS):
        assert tokens(subject.generate(prompt, max_tokens=8)) == subject.alone(number, 8)
    assert len({tuple(subject.alone(number, 8)) for number in range(len(PROMPTS))}) == len(PROMPTS), "all look the same"


def test_seed_reproduces_a_sample_whoever_else_runs(subject: Subject) -> None:
    first = tokens(subject.generate(PROMPTS[1], temperature=1.0, seed=7, max_tokens=12))
    assert tokens(subject.generate(PROMPTS[1], temperature=1.0, seed=7, max_tokens=12)) == first
    ids = [subject.add(prompt, temperature=1.0, seed=7, max_tokens=12) for prompt in PROMPTS]
    assert tokens(subject.steps_until_end(*ids)[ids[1]]) == first


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens(subject: Subject, max_tokens: int) -> None:
    outputs = subject.generate(PROMPTS[1], max_tokens=max_tokens)
    assert len(tokens(outputs)) == max_tokens
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_model_length_ends_a_sequence(subject: Subject) -> None:
    prompt = (PROMPTS[1] * MAX_MODEL_LEN)[: MAX_MODEL_LEN - 5]
    for limit in (None, 100):
        outputs = subject.generate(prompt, max_tokens=limit)
        assert len(tokens(outputs)) == 5
        assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_longest_prompt_has_room_for_one_token(subject: Subject) -> None:
    outputs = subject.generate((PROMPTS[1] * MAX_MODEL_LEN)[: MAX_MODEL_LEN - 1], max_tokens=None)
    assert len(tokens(outputs)) == 1
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_stop_token_ids(subject: Subject) -> None:
    free = subject.alone(1, 12)
    stop = free[5]
    outputs = subject.generate(PROMPTS[1], max_tokens=12, stop_token_ids=(stop,))
    assert tokens(outputs) == free[: free.index(stop) + 1]
    assert outputs[-1].finish_reason is FinishReason.STOP_SEQUENCE


def test_end_of_sequence(subject: Subject) -> None:
    """The bias makes a model end at once; an engine that does not look at it ends after as many tokens as it was given."""
    eos = subject.eos_token_ids[0]
    wanted: dict[str, Any] = {"max_tokens": len(PROMPTS[0]) + 4, "logit_bias": {eos: 100.0}}
    outputs = subject.generate(PROMPTS[0], ignore_eos=False, **wanted)
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN
    assert [token_id in subject.eos_token_ids for token_id in tokens(outputs)].index(True) == len(tokens(outputs)) - 1


def test_ignore_eos(subject: Subject) -> None:
    eos = subject.eos_token_ids[0]
    outputs = subject.generate(PROMPTS[0], ignore_eos=True, max_tokens=12, logit_bias={eos: 100.0})
    assert len(tokens(outputs)) == 12
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_min_tokens_holds_the_end_back(subject: Subject) -> None:
    eos = subject.eos_token_ids[0]
    outputs = subject.generate(PROMPTS[0], ignore_eos=False, min_tokens=9, max_tokens=14, logit_bias={eos: 100.0})
    generated = tokens(outputs)
    assert 9 <= len(generated) <= 14
    assert not set(generated[:9]) & set(subject.eos_token_ids)


# Log probabilities


def test_no_logprobs_unless_asked_for(subject: Subject) -> None:
    for output in subject.generate(PROMPTS[1]):
        assert output.logprobs is None
        assert not output.top_logprobs
        assert output.prompt_logprobs is None
        assert output.prompt_top_logprobs is None


@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs(subject: Subject, count: int) -> None:
    if count > subject.backend.capabilities.max_logprobs:
        pytest.skip(f"the engine gives at most {subject.backend.capabilities.max_logprobs} alternatives")
    for output in subject.generate(PROMPTS[1], logprobs=count):
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        assert all(logprob <= 0 for logprob in output.logprobs)
        if count == 0:
            assert not output.top_logprobs
            continue
        assert output.top_logprobs is not None
        assert len(output.top_logprobs) == len(output.token_ids)
        for token_id, logprob, top in zip(output.token_ids, output.logprobs, output.top_logprobs, strict=True):
            assert len(top) == len(dict(top)) == count
            assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
            assert top[0][1] == pytest.approx(logprob, abs=1e-4), "greedy takes the most probable token"
            assert dict(top).get(token_id, logprob) == pytest.approx(logprob, abs=1e-4)


def test_more_logprobs_than_there_are_to_be_had(subject: Subject) -> None:
    """The web worker refuses these by what the engine has told; an adapter that is asked for the most has it."""
    limits = subject.backend.capabilities
    most: dict[str, Any] = {
        "logprobs": limits.max_logprobs,
        "prompt_logprobs": limits.max_prompt_logprobs or limits.max_logprobs,
    }
    for field, limit in most.items():
        with pytest.raises(InvalidRequest, match=f"{field}: must be at most {limit}, got {limit + 1}"):
            check_sampling_params(SamplingParams(**(most | {field: limit + 1})), limits)
    output = subject.generate(PROMPTS[0], **most)[0]
    assert [len(top) for top in output.top_logprobs or ()] == [most["logprobs"]] * bool(most["logprobs"])
    assert [len(top or ()) for top in output.prompt_top_logprobs or ()] == [0, *[most["prompt_logprobs"]] * 4]


def test_logprobs_do_not_change_what_is_generated(subject: Subject) -> None:
    count = min(5, subject.backend.capabilities.max_logprobs)
    assert tokens(subject.generate(PROMPTS[1], logprobs=count, max_tokens=12)) == subject.alone(1, 12)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("prompt", [[97], PROMPTS[1], (PROMPTS[1] * 4)[:90]], ids=["one", "some", "many"])
def test_prompt_logprobs(subject: Subject, prompt: list[int], count: int) -> None:
    output = subject.generate(prompt, prompt_logprobs=count, max_tokens=3)[0]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    assert all(logprob is not None and logprob <= 0 for logprob in output.prompt_logprobs[1:])
    if count == 0:
        assert output.prompt_top_logprobs is None
        return
    assert output.prompt_top_logprobs is not None
    assert len(output.prompt_top_logprobs) == len(prompt)
    assert output.prompt_top_logprobs[0] is None
    for token_id, logprob, top in zip(
        prompt[1:], output.prompt_logprobs[1:], output.prompt_top_logprobs[1:], strict=True
    ):
        assert logprob is not None
        assert top is not None
        assert len(top) == len(dict(top)) == count
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
        assert top[0][1] >= logprob - 1e-4, "nothing is more probable than the best"
        assert dict(top).get(token_id, logprob) == pytest.approx(logprob, abs=1e-4)
        assert token_id in dict(top) or logprob <= top[-1][1] + 1e-4


def test_prompt_logprobs_in_one_batch(subject: Subject) -> None:
    """Each sequence gets its own, and as many as it asked for."""
    wanted: dict[str, Any] = {"max_tokens": 3}
    alone = [subject.generate(prompt, **wanted, prompt_logprobs=3)[0] for prompt in PROMPTS]
    counts = (None, 0, 1, 2, 3)
    ids = [subject.add(prompt, **wanted, prompt_logprobs=count) for prompt, count in zip(PROMPTS, counts, strict=True)]
    together = subject.steps_until_end(*ids)
    for request_id, count, expected in zip(ids, counts, alone, strict=True):
        output = together[request_id][0]
        assert (output.prompt_logprobs is None) == (count is None)
        assert (output.prompt_top_logprobs is None) == (not count)
        for top, best in zip(output.prompt_top_logprobs or (), expected.prompt_top_logprobs or (), strict=False):
            assert [value for _, value in top or ()] == pytest.approx(
                [value for _, value in (best or ())[:count]], abs=1e-3
            )


# Life of a sequence


def test_step_with_nothing_to_do(subject: Subject) -> None:
    assert subject.backend.step() == []
    assert subject.backend.step() == []


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_nothing_comes_after_an_abort(subject: Subject, steps: int) -> None:
    aborted = subject.add(PROMPTS[1], max_tokens=40)
    other = subject.add(PROMPTS[2], max_tokens=12)
    before = [output for _ in range(steps) for output in subject.backend.step()]
    subject.backend.abort(aborted)
    outputs: list[TokenOutput] = []
    while other not in {output.request_id for output in before + outputs if output.finish_reason is not None}:
        outputs += subject.backend.step()
    assert aborted not in {output.request_id for output in outputs}
    assert tokens(of(before + outputs, other)) == subject.alone(2, 12)


def test_abort_of_what_does_not_run_is_ignored(subject: Subject) -> None:
    subject.backend.abort("never was")
    request_id = subject.add(PROMPTS[0])
    subject.steps_until_end(request_id)
    subject.backend.abort(request_id)
    twice = subject.add(PROMPTS[0])
    subject.backend.abort(twice)
    subject.backend.abort(twice)


def test_request_that_cannot_run_leaves_the_others_alone(subject: Subject) -> None:
    running = subject.add(PROMPTS[1], max_tokens=12)
    before = subject.backend.step()
    for prompt in ([], [97] * MAX_MODEL_LEN, [97] * (3 * MAX_MODEL_LEN)):
        with pytest.raises(InvalidRequest):
            subject.add(prompt)
        before += subject.backend.step()
    assert tokens(subject.steps_until_end(running, before=before)[running]) == subject.alone(1, 12)


def test_more_sequences_than_places(subject: Subject) -> None:
    """The loop respects the batch size; an engine that is given more must not lose any."""
    ids = [subject.add(PROMPTS[number % len(PROMPTS)], max_tokens=4) for number in range(12)]
    ended = subject.steps_until_end(*ids)
    for number, request_id in enumerate(ids):
        assert tokens(ended[request_id]) == subject.alone(number % len(PROMPTS), 4)


class Visit(NamedTuple):
    """A sequence of a schedule: joins after `joins` steps, and is aborted after as many as `leaves`, if it still runs."""

    joins: int
    prompt: int
    max_tokens: int
    leaves: int | None


visits = st.builds(
    Visit,
    joins=st.integers(0, 8),
    prompt=st.integers(0, len(PROMPTS) - 1),
    max_tokens=st.sampled_from([1, 3, 8]),
    leaves=st.none() | st.integers(0, 12),
)


@given(st.lists(visits, min_size=1, max_size=10))
@settings(max_examples=8, deadline=None)
def test_who_else_joins_and_leaves_changes_nothing(loaded: Subject, schedule: list[Visit]) -> None:
    backend = loaded.backend
    ids: dict[int, str] = {}
    outputs: list[TokenOutput] = []
    aborted: set[str] = set()
    for step in itertools.count():
        for number, visit in enumerate(schedule):
            if visit.joins == step:
                ids[number] = loaded.add(PROMPTS[visit.prompt], max_tokens=visit.max_tokens)
            ended = {output.request_id for output in outputs if output.finish_reason is not None}
            if visit.leaves == step and number in ids and ids[number] not in ended:
                backend.abort(ids[number])
                aborted.add(ids[number])
        ended = {output.request_id for output in outputs if output.finish_reason is not None}
        if step > 8 and ended | aborted == set(ids.values()):
            break
        new = backend.step()
        assert not aborted & {output.request_id for output in new}
        outputs += new
        assert step < 1000, "a sequence never ended"
    assert backend.step() == []
    for number, visit in enumerate(schedule):
        own = of(outputs, ids[number])
        expected = loaded.alone(visit.prompt, visit.max_tokens)
        assert tokens(own) == expected[: len(tokens(own))]
        if ids[number] not in aborted:
            assert (len(tokens(own)), own[-1].finish_reason) == (visit.max_tokens, FinishReason.LENGTH)
