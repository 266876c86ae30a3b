"""The TensorRT-LLM adapter: tokens, sampling, log probabilities and structured outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorrt_llm_adapter import (
    EOS,
    MAX_MODEL_LEN,
    OTHER_EOS,
    PROMPT,
    VOCAB_SIZE,
    GuidedDecodingParams,
    Load,
    TensorRTLLMBackend,
    context_logits,
    controls,
    engine,
    engine_sampling_params,
    finished,
    loading,
    logprob,
    request,
    run,
    steps,
    submitted,
    token_ids,
    write_model,
)

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import EncodedPrompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with loading(tmp_path) as load:
        yield load


# Tokens


def test_outputs_have_new_tokens_only(load: Load) -> None:
    backend = load()
    outputs = run(backend, PROMPT)
    assert token_ids(outputs) == [*PROMPT, EOS]
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN
    params = submitted(backend)
    assert (params.temperature, params.top_p, params.top_k) == (None, None, None)
    assert params.detokenize is False


def test_several_tokens_per_step(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "tokens_per_response", 4)
    outputs = run(load(), PROMPT, logprobs=0)
    assert [output.token_ids for output in outputs] == [PROMPT[:4], [*PROMPT[4:], EOS]]
    assert [len(output.logprobs or ()) for output in outputs] == [4, 3]


def test_outputs_do_not_change_later(load: Load) -> None:
    outputs = run(load(), PROMPT)
    assert outputs[0].token_ids == PROMPT[: len(outputs[0].token_ids)]


def test_engine_that_does_not_return_the_end_id(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "end_id_in_token_ids", False)
    outputs = run(load(), PROMPT, logprobs=0)
    assert token_ids(outputs) == PROMPT
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN


def test_no_max_tokens(load: Load) -> None:
    backend = load()
    outputs = run(backend, PROMPT, ignore_eos=True)
    assert len(token_ids(outputs)) == MAX_MODEL_LEN - len(PROMPT)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert submitted(backend).max_tokens == MAX_MODEL_LEN - len(PROMPT)


def test_max_tokens_above_the_model_length(load: Load) -> None:
    backend = load()
    room = MAX_MODEL_LEN - len(PROMPT)
    assert len(token_ids(run(backend, PROMPT, ignore_eos=True, max_tokens=2**40, min_tokens=2**40))) == room
    params = submitted(backend)
    assert (params.max_tokens, params.min_tokens) == (room, room), "the engine computes with 32 bits"


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_is_returned(load: Load, include: bool) -> None:
    """The engine removes it from the final list unless told otherwise. The text layer decides what is shown."""
    outputs = run(load(), PROMPT, stop_token_ids=(12,), logprobs=0, include_stop_str_in_output=include)
    assert token_ids(outputs) == [10, 11, 12]
    assert outputs[-1].finish_reason is FinishReason.STOP_SEQUENCE
    assert [value for output in outputs for value in output.logprobs or ()] == [
        logprob(token) for token in (10, 11, 12)
    ]


def test_several_end_of_sequence_ids(load: Load) -> None:
    outputs = run(load(), [10, OTHER_EOS, 12])
    assert token_ids(outputs) == [10, OTHER_EOS]
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN


def test_ignore_eos(load: Load) -> None:
    outputs = run(load(), [10, OTHER_EOS, EOS], ignore_eos=True, max_tokens=5)
    assert token_ids(outputs) == [10, OTHER_EOS, EOS, 10, OTHER_EOS]


def test_stop_token_id_takes_precedence_over_ignore_eos(load: Load) -> None:
    outputs = run(load(), [10, OTHER_EOS, 12], ignore_eos=True, stop_token_ids=(OTHER_EOS,))
    assert token_ids(outputs) == [10, OTHER_EOS]
    assert outputs[-1].finish_reason is FinishReason.STOP_SEQUENCE


def test_model_without_an_end_id(tmp_path: Path) -> None:
    files = msgspec.structs.replace(write_model(tmp_path), eos_token_ids=())
    backend = TensorRTLLMBackend.load(files, ServingProperties(tensor_parallel_degree=1), lambda phase: None)
    assert token_ids(run(backend, PROMPT, max_tokens=7)) == [*PROMPT, PROMPT[0]]
    backend.close()


# Sampling


def test_each_request_without_a_seed_gets_its_own(load: Load) -> None:
    backend = load()
    for _ in range(2):
        run(backend, PROMPT, temperature=0.7, max_tokens=1)
    seeds = [params.seed for params in engine(backend).submitted]
    assert None not in seeds
    assert seeds[0] != seeds[1]


def test_sampling_is_not_mistaken_for_greedy(load: Load) -> None:
    backend = load()
    run(backend, PROMPT, temperature=1.0, max_tokens=1)
    params = submitted(backend)
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)


def test_every_parameter_reaches_the_engine(load: Load) -> None:
    backend = load()
    given_params: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "min_tokens": 1,
        "seed": 2**64 - 1,
    }
    run(backend, PROMPT, max_tokens=1, **given_params)
    params = submitted(backend)
    assert {name: getattr(params, name) for name in given_params} == given_params
    assert params.max_tokens == 1


@pytest.mark.parametrize(("given", "sent"), [(5e-324, 1e-20), (1e300, 1e20)])
def test_numbers_that_32_bits_do_not_hold(load: Load, given: float, sent: float) -> None:
    """The engine rejects those that become 0."""
    backend = load()
    run(backend, PROMPT, temperature=1.0, max_tokens=1, repetition_penalty=given, top_p=min(given, 1.0))
    params = submitted(backend)
    assert (params.repetition_penalty, params.top_p) == (sent, min(sent, 1.0))


@pytest.mark.parametrize(
    ("given", "ignores"),
    [({"presence_penalty": 1.0}, True), ({"frequency_penalty": 1.0}, True), ({"repetition_penalty": 1.5}, False)],
)
def test_presence_and_frequency_count_generated_tokens_only(load: Load, given: dict[str, Any], ignores: bool) -> None:
    """The engine ignores this many tokens at the start of the prompt for these two. It clamps the number."""
    backend = load()
    run(backend, PROMPT, max_tokens=1, **given)
    assert ((submitted(backend).prompt_ignore_length or 0) >= len(PROMPT)) is ignores


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (VOCAB_SIZE, 0), (2**40, 0), (5, 5)])
def test_top_k(load: Load, top_k: int, expected: int) -> None:
    backend = load()
    run(backend, PROMPT, temperature=1.0, top_k=top_k, max_tokens=1)
    assert submitted(backend).top_k == expected


def test_logit_bias(load: Load) -> None:
    backend = load()
    run(backend, PROMPT, logit_bias={4: 1.5, 63: -100.0}, max_tokens=1)
    bias = submitted(backend).embedding_bias.tolist()
    assert bias == [0.0] * 4 + [1.5] + [0.0] * 58 + [-100.0]


# Log probabilities


def test_logprobs_of_the_sampled_tokens(load: Load) -> None:
    outputs = run(load(), PROMPT, logprobs=0)
    assert all(output.top_logprobs is None for output in outputs)
    values = [value for output in outputs for value in output.logprobs or ()]
    assert values == [logprob(token) for token in [*PROMPT, EOS]]


def test_no_logprobs_unless_requested(load: Load) -> None:
    outputs = run(load(), PROMPT)
    assert [(output.logprobs, output.prompt_logprobs) for output in outputs] == [(None, None)] * len(outputs)


@pytest.mark.parametrize("prompt", [PROMPT, [10]])
def test_prompt_logprobs(load: Load, prompt: list[int]) -> None:
    first, *others = run(load(), prompt, prompt_logprobs=0)
    expected = context_logits(prompt, VOCAB_SIZE).log_softmax(dim=-1)
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert first.prompt_logprobs[1:] == pytest.approx(
        [float(expected[t, prompt[t + 1]]) for t in range(len(prompt) - 1)]
    )
    assert [output.prompt_logprobs for output in others] == [None] * len(others)


def test_top_prompt_logprobs(load: Load) -> None:
    first, *others = run(load(), PROMPT, prompt_logprobs=3)
    assert first.prompt_top_logprobs is not None
    none, *best = first.prompt_top_logprobs
    values, ids = context_logits(PROMPT, VOCAB_SIZE).log_softmax(dim=-1)[:-1].topk(3)
    assert none is None
    assert [[token for token, _ in top or ()] for top in best] == ids.tolist()
    for top, expected in zip(best, values.tolist(), strict=True):
        assert [value for _, value in top or ()] == pytest.approx(expected)
    assert [output.prompt_top_logprobs for output in others] == [None] * len(others)


def test_prompt_logprobs_of_a_cached_prompt(load: Load) -> None:
    """The engine computes no logits for cached tokens, so the adapter must bypass the cache."""
    backend = load()
    assert [run(backend, PROMPT, prompt_logprobs=0)[0].prompt_logprobs for _ in range(2)][1] is not None


def test_salts_separate_cached_prompts(load: Load) -> None:
    backend, cached = load(), []
    for salt in (None, "a", "b", "a", None):
        prompt = EncodedPrompt(PROMPT, cache_salt=salt)
        backend.add_request(msgspec.structs.replace(request(PROMPT), prompt=prompt))
        cached.append(steps(backend, finished(1))[0].num_cached_tokens)
    assert cached == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("reuse", [None, True, False])
def test_prefix_cache_is_counted(load: Load, reuse: bool | None) -> None:
    """The stand-in reuses a prompt's first token."""
    backend = load(enable_kv_cache_reuse=reuse)
    answers = [run(backend, prompt) for prompt in (PROMPT, [10, 20], [20, 10])]
    reused = 0 if reuse is False else 1
    assert [answer[0].num_cached_tokens for answer in answers] == [0, reused, 0]
    assert {output.num_cached_tokens for _, *others in answers for output in others} == {None}
    expected = EngineCounters() if reuse is False else EngineCounters(prefix_cache_queries=10, prefix_cache_hits=1)
    assert backend.counters == expected


def test_missing_logprob_is_an_error(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's other sampler may leave it out. The adapter must not make up a number."""
    backend = load()
    monkeypatch.setattr(engine(backend).args, "sampler_type", "TorchSampler")
    (output,) = run(backend, PROMPT, logprobs=0)
    assert output.finish_reason is FinishReason.ERROR
    assert "no log probability" in (output.error or "")
    assert token_ids(run(backend, PROMPT)) == [*PROMPT, EOS]


# Structured outputs


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("wanted", "guide"),
    [
        ({"json": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"choice": ("yes", "no")}, {"regex": "yes|no"}),
        ({"choice": ("1+1", "a b-c")}, {"regex": r"1\+1|a b-c"}),
    ],
)
def test_structured_outputs(load: Load, library: str, wanted: dict[str, Any], guide: dict[str, Any]) -> None:
    backend = load(guided_decoding_backend=library)
    assert "structured_outputs" not in backend.capabilities.unsupported
    run(backend, PROMPT, structured_outputs=StructuredOutputs(**wanted))
    assert submitted(backend).guided_decoding == GuidedDecodingParams(**guide)


def test_no_structured_outputs(load: Load) -> None:
    backend = load(guided_decoding_backend="xgrammar")
    run(backend, PROMPT)
    assert submitted(backend).guided_decoding is None


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.text())
def test_choice_matches_only_its_texts(choice: list[str], other: str) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(choice=tuple(choice)))
    regex = engine_params(params).guided_decoding.regex
    for text in [*choice, other]:
        assert (re.fullmatch(regex, text) is not None) == (text in choice)


def engine_params(params: SamplingParams) -> Any:
    return engine_sampling_params(params, max_tokens=1, min_tokens=0, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE)


def test_structured_outputs_need_a_library(load: Load) -> None:
    assert "structured_outputs" in load().capabilities.unsupported
