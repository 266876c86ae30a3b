"""The beam search algorithm, compared with enumeration and with transformers."""

from __future__ import annotations

import copy
import itertools
import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Server
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import BeamSearchParams
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import resolve_model
from lmi_handlers.serving.beam_search import Beam, BeamSearch, Continuations

Expand = Callable[[list[Beam]], Sequence[Continuations]]


def run(search: BeamSearch, expand: Expand) -> list[Beam]:
    while search.running:
        search.advance(expand(search.running))
    return search.finished


# Compared with enumeration


def table(seed: int, vocab_size: int, *, top: int | None = None) -> Expand:
    """Random next-token probabilities, different for each prefix."""

    def continuations(beam: Beam) -> Continuations:
        source = random.Random(f"{seed} {beam.token_ids}")
        weights = [source.expovariate(1) + 1e-6 for _ in range(vocab_size)]
        pairs = [(token_id, math.log(weight / sum(weights))) for token_id, weight in enumerate(weights)]
        return sorted(pairs, key=lambda pair: -pair[1])[:top]

    return lambda beams: [continuations(beam) for beam in beams]


def every_answer(expand: Expand, *, vocab_size: int, max_tokens: int, min_tokens: int, end: int) -> list[Beam]:
    """All possible complete answers, found without pruning."""
    answers = []
    for length in range(1, max_tokens + 1):
        for token_ids in itertools.product(range(vocab_size), repeat=length):
            ends_early = end in token_ids[:-1] or (end in token_ids and token_ids.index(end) < min_tokens)
            if ends_early or (token_ids[-1] != end and length < max_tokens):
                continue
            logprobs = [
                dict(expand([Beam(token_ids=token_ids[:position])])[0])[token_id]
                for position, token_id in enumerate(token_ids)
            ]
            reason = FinishReason.EOS_TOKEN if token_ids[-1] == end else FinishReason.LENGTH
            answers.append(Beam(token_ids, tuple(logprobs), (), sum(logprobs), reason))
    return answers


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**9),
    vocab_size=st.integers(2, 3),
    max_tokens=st.integers(1, 4),
    min_tokens=st.integers(0, 2),
    length_penalty=st.floats(-2, 3),
)
def test_enough_beams_for_all_answers_find_the_best_ones(
    seed: int, vocab_size: int, max_tokens: int, min_tokens: int, length_penalty: float
) -> None:
    params = BeamSearchParams(num_beams=128, length_penalty=length_penalty)
    expand = table(seed, vocab_size)
    search = BeamSearch(
        params, max_tokens=max_tokens, min_tokens=min_tokens, endings={vocab_size - 1: FinishReason.EOS_TOKEN}
    )
    found = run(search, expand)
    answers = every_answer(
        expand, vocab_size=vocab_size, max_tokens=max_tokens, min_tokens=min_tokens, end=vocab_size - 1
    )
    assert {(beam.token_ids, beam.logprobs, beam.finish_reason) for beam in found} == {
        (beam.token_ids, beam.logprobs, beam.finish_reason) for beam in answers
    }
    scores = [beam.score(length_penalty) for beam in found]
    assert scores == sorted(scores, reverse=True)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**9),
    num_beams=st.integers(2, 4),
    endings=st.sets(st.integers(0, 11), max_size=2),
    min_tokens=st.integers(0, 3),
    early_stopping=st.booleans(),
)
def test_one_candidate_per_beam_and_end_token_is_enough(
    seed: int, num_beams: int, endings: set[int], min_tokens: int, early_stopping: bool
) -> None:
    def answers(top: int | None) -> list[tuple[int, ...]]:
        params = BeamSearchParams(num_beams=num_beams, early_stopping=early_stopping)
        reasons = dict.fromkeys(endings, FinishReason.EOS_TOKEN)
        search = BeamSearch(params, max_tokens=6, min_tokens=min_tokens, endings=reasons)
        return [beam.token_ids for beam in run(search, table(seed, 12, top=top))]

    assert answers(num_beams + len(endings)) == answers(None)
    assert len(answers(None)) == num_beams


def test_beam_ends_at_a_stop_string() -> None:
    def contains_stop(token_ids: Sequence[int]) -> bool:
        return token_ids[-2:] == (0, 0)

    params = BeamSearchParams(num_beams=2, length_penalty=0.0)
    search = BeamSearch(params, max_tokens=3, contains_stop=contains_stop)
    found = run(search, lambda beams: [[(0, -0.5), (1, -1.5)] for _ in beams])
    assert [(beam.token_ids, beam.finish_reason, beam.cumulative_logprob) for beam in found] == [
        ((0, 0), FinishReason.STOP_SEQUENCE, -1.0),
        ((0, 1, 0), FinishReason.LENGTH, -2.5),
    ]


def test_search_ends_if_no_beam_can_continue() -> None:
    params = BeamSearchParams(num_beams=2)
    search = BeamSearch(params, max_tokens=9, contains_stop=lambda token_ids: True)
    found = run(search, lambda beams: [[(0, -0.5), (1, -1.5), (2, -3.0)] for _ in beams])
    assert [beam.token_ids for beam in found] == [(0,), (1,)]


@pytest.mark.parametrize("wrong", [{"num_beams": 1}, {"num_beams": 129}, {"length_penalty": 11.0}])
def test_error_names_the_parameter_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        BeamSearchParams(**{"num_beams": 2} | wrong)


# Compared with transformers


def expand_with(model: Any, prompt: list[int], count: int) -> Expand:
    """Compute the next logprobs of all beams in one forward pass. The prompt is processed once."""
    with torch.inference_mode():
        of_prompt = model(torch.tensor([prompt[:-1]]), use_cache=True).past_key_values

    def expand(beams: list[Beam]) -> Sequence[Continuations]:
        with torch.inference_mode():
            token_ids = torch.tensor([[prompt[-1], *beam.token_ids] for beam in beams])
            cache = copy.deepcopy(of_prompt)
            cache.batch_repeat_interleave(len(beams))
            logits = model(token_ids, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        values, ids = logits.float().log_softmax(dim=-1).topk(min(count, logits.shape[-1]), dim=-1)
        return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]

    return expand


def check_against_transformers(
    model: Any, prompt: list[int], params: BeamSearchParams, *, eos: list[int], max_tokens: int, min_tokens: int = 0
) -> list[Beam]:
    expected = model.generate(
        torch.tensor([prompt]),
        num_beams=params.num_beams,
        num_return_sequences=params.num_beams,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        do_sample=False,
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        eos_token_id=eos,
        pad_token_id=eos[0],
        return_dict_in_generate=True,
        output_scores=True,
    )
    search = BeamSearch(
        params,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        endings=dict.fromkeys(eos, FinishReason.EOS_TOKEN),
    )
    found = run(search, expand_with(model, prompt, params.num_beams + len(eos)))
    assert [list(beam.token_ids) for beam in found] == [
        until_end(row, eos) for row in expected.sequences[:, len(prompt) :].tolist()
    ]
    assert [beam.score(params.length_penalty) for beam in found] == pytest.approx(
        expected.sequences_scores.tolist(), rel=1e-4, abs=1e-4
    )
    for beam in found:
        assert (beam.finish_reason is FinishReason.EOS_TOKEN) == (beam.token_ids[-1] in eos)
    return found


def until_end(token_ids: list[int], eos: list[int]) -> list[int]:
    ends = [position for position, token_id in enumerate(token_ids) if token_id in eos]
    return token_ids[: ends[0] + 1] if ends else token_ids


def tiny_model(seed: int) -> Any:
    """A model with sixteen tokens. Its answers end early or late, depending on the seed."""
    torch.manual_seed(seed)
    make: Any = AutoModelForCausalLM.from_config  # the library's types are incomplete
    model = make(
        LlamaConfig(
            vocab_size=16,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    return model.eval()


# Always the same examples, because others may have two equal scores in float32, so that two answers are correct.
@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    num_beams=st.integers(2, 4),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early_stopping=st.booleans(),
    eos=st.lists(st.integers(0, 15), min_size=1, max_size=3, unique=True),
    max_tokens=st.integers(1, 12),
    min_tokens=st.integers(0, 4),
)
def test_random_models_match_transformers(
    seed: int,
    num_beams: int,
    length_penalty: float,
    early_stopping: bool,
    eos: list[int],
    max_tokens: int,
    min_tokens: int,
) -> None:
    params = BeamSearchParams(num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping)
    check_against_transformers(
        tiny_model(seed),
        [1, 2, 3],
        params,
        eos=eos,
        max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens),
    )


PROMPTS = {
    "ends": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "goes on": "Deep Learning is",
}


class RealModel:
    """The default model in transformers, in float32."""

    def __init__(self) -> None:
        path = resolve_model(
            None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ), report=lambda phase: None
        )
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.eos: list[int] = [self.tokenizer.eos_token_id]


@pytest.fixture(scope="module")
def real_model() -> RealModel:
    return RealModel()


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "num_beams", "length_penalty", "early_stopping"),
    [
        ("ends", 3, 1.0, True),
        ("goes on", 2, 0.5, False),
        *(
            pytest.param(*others, marks=pytest.mark.long)
            for others in (("ends", 4, 2.0, False), ("goes on", 4, 1.0, False))
        ),
    ],
)
def test_real_model_matches_transformers(
    real_model: RealModel, prompt: str, num_beams: int, length_penalty: float, early_stopping: bool
) -> None:
    params = BeamSearchParams(num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping)
    token_ids = real_model.tokenizer.encode(PROMPTS[prompt])
    found = check_against_transformers(real_model.model, token_ids, params, eos=real_model.eos, max_tokens=12)
    assert (prompt == "ends") == any(beam.finish_reason is FinishReason.EOS_TOKEN for beam in found)


@pytest.mark.model
def test_model_server_matches_transformers(real_model: RealModel, model_server: Server) -> None:
    tokenizer, prompt = real_model.tokenizer, PROMPTS["goes on"]
    token_ids = torch.tensor([tokenizer.encode(prompt)])
    expected = real_model.model.generate(
        token_ids, num_beams=3, num_return_sequences=3, do_sample=False, max_new_tokens=12, pad_token_id=0
    )
    answer = model_server.invoke({"inputs": prompt, "parameters": {"num_beams": 3, "max_new_tokens": 12}}).json()
    details = answer["details"]
    texts = [answer["generated_text"], *(other["generated_text"] for other in details["best_of_sequences"])]
    assert texts == [tokenizer.decode(row[token_ids.shape[1] :], skip_special_tokens=True) for row in expected]
    assert details["generated_tokens"] == 12
    assert all(token["log_prob"] < 0 for token in details["tokens"])
