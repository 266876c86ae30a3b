"""The sampler, on NumPy arrays and torch tensors: it matches transformers, and rows do not depend on their batch."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
import torch
from facts import says
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    WatermarkLogitsProcessor,
)

from backends.grammar import GrammarMatcher, Vocabulary, grammar_text
from backends.sampling.arrays import topk
from backends.sampling.sampler import Sampled, SamplerState, Watermark, logprobs_and_best, sample, sample_drafts
from lmi_handlers.core.errors import InvalidRequest, RequestError, RequestFailed
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle

VOCAB_SIZE = 1500  # more than the middle size that the nucleus search tries

Convert: TypeAlias = Callable[[torch.Tensor], Any]


@pytest.fixture(scope="module", params=["numpy", "torch"])
def convert(request: pytest.FixtureRequest) -> Convert:
    """Copies a tensor to an array of the tested library."""
    return torch.Tensor.clone if request.param == "torch" else lambda tensor: tensor.numpy().copy()


def make_state(
    params: SamplingParams, prompt: list[int] | None = None, output: list[int] | None = None, **kwargs: Any
) -> SamplerState:
    state = SamplerState(params, prompt or [1], frozenset({2, *params.stop_token_ids}), **kwargs)
    for token in output or []:
        state.record(token)
    return state


def make_logits(seed: int, rows: int = 1, spread: float = 4.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * spread


def reference_scores(
    logits: torch.Tensor, params: SamplingParams, prompt: list[int], output: list[int]
) -> torch.Tensor:
    """Return the scores of one row after applying `params`, with transformers' processors where they exist."""
    scores = logits.clone()[None]
    for token, bias in (params.logit_bias or {}).items():
        scores[0, token] += bias
    ids = torch.tensor([prompt + output])
    scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    for token in set(output):
        scores[0, token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if len(output) < params.min_tokens:
        scores[0, [2, *params.stop_token_ids]] = -math.inf
    warpers: list[Any] = [TemperatureLogitsWarper(params.temperature)]
    warpers += [TopKLogitsWarper(params.top_k)] if params.top_k > 0 else []
    warpers += [TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    warpers += [MinPLogitsWarper(params.min_p)] if params.min_p > 0 else []
    warpers += [TypicalLogitsWarper(params.typical_p)] if params.typical_p < 1 else []
    for warper in warpers:
        scores = warper(ids, scores)
    row: torch.Tensor = scores[0]
    return row


def assert_drawn_from(token: int, scores: torch.Tensor, seed: int, draws_before: int = 0) -> None:
    """Check that the seed's random number selects `token` from the distribution of `scores`, apart from rounding.

    Where all tokens are about equally likely, rounding decides which token is the last one inside a nucleus.
    """
    source = random.Random(seed)
    number = [source.random() for _ in range(draws_before + 1)][-1]
    probs = scores.double().softmax(dim=-1)
    assert probs[token] > 0
    below = float(probs[:token].sum())
    rounding = 1e-5 + 2 * float(probs[probs > 0].min())
    assert below - rounding <= number <= below + float(probs[token]) + rounding


sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0.2, 3.0),
    top_k=st.sampled_from([0, -1, 1, 2, 40, 1200, 5000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    typical_p=st.sampled_from([1.0, 0.95, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.5]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.8, -0.5]),
    logit_bias=st.none() | st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.floats(-100, 100), max_size=4),
    min_tokens=st.sampled_from([0, 3, 50]),
    stop_token_ids=st.sampled_from([(), (5, 7)]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(deadline=None, max_examples=60)
@given(
    params=st.lists(sampling_params, min_size=1, max_size=5),
    history=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    logits_seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
)
def test_rows_match_transformers(
    convert: Convert, params: list[SamplingParams], history: list[int], logits_seed: int, spread: float
) -> None:
    """The parameters of other rows do not matter. Half of the history is the prompt, the other half the output."""
    half = len(history) // 2 + 1
    prompt, output = history[:half], history[half:]
    logits = make_logits(logits_seed, rows=len(params), spread=spread)
    expected = [reference_scores(row, p, prompt, output) for row, p in zip(logits, params, strict=True)]
    sampled = sample(convert(logits), [make_state(p, prompt, output) for p in params])
    for choice, scores, p in zip(sampled, expected, params, strict=True):
        assert choice.error is None
        assert p.seed is not None
        assert_drawn_from(choice.token_id, scores, p.seed)


@pytest.mark.parametrize("seed", range(3))
def test_greedy_chooses_the_best_token_after_penalties(convert: Convert, seed: int) -> None:
    logits = make_logits(seed)
    best = int(logits.argmax())
    assert sample(convert(logits), [make_state(SamplingParams(temperature=0))])[0] == Sampled(best)
    params = SamplingParams(temperature=0, logit_bias={best: -100.0})
    assert sample(convert(logits), [make_state(params)])[0].token_id == int(logits[0].topk(2).indices[1])


def test_tiny_temperature_is_greedy(convert: Convert) -> None:
    logits = make_logits(0)
    assert sample(convert(logits), [make_state(SamplingParams(temperature=1e-40))])[0].token_id == int(logits.argmax())


def test_top_k_keeps_ties(convert: Convert) -> None:
    """As in transformers. With half precision, ties are common, and their order after sorting is arbitrary."""
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    logits[0, [10, 20, 30]] = 5.0
    drawn = {
        sample(convert(logits), [make_state(SamplingParams(top_k=2, seed=seed))])[0].token_id for seed in range(60)
    }
    assert drawn == {10, 20, 30}


def test_frequencies_follow_the_distribution(convert: Convert) -> None:
    """4000 draws from a distribution of three tokens, without a seed."""
    logits = torch.full((4000, VOCAB_SIZE), -math.inf)
    logits[:, [3, 700, 1499]] = torch.tensor([0.2, 0.3, 0.5]).log()
    drawn = [choice.token_id for choice in sample(convert(logits), [make_state(SamplingParams()) for _ in range(4000)])]
    for token, probability in ((3, 0.2), (700, 0.3), (1499, 0.5)):
        # Six standard deviations.
        assert abs(drawn.count(token) / 4000 - probability) < 6 * math.sqrt(probability * (1 - probability) / 4000)


def test_seed_gives_the_same_tokens_in_any_batch(convert: Convert) -> None:
    mixed = [SamplingParams(temperature=0), SamplingParams(top_p=0.3), SamplingParams(top_k=3, logprobs=2)]
    for seed in range(20):
        logits = make_logits(seed, rows=4)
        params = SamplingParams(temperature=0.9, top_p=0.95, seed=seed)
        alone = sample(convert(logits[3:]), [make_state(params)])[0]
        assert sample(convert(logits), [make_state(p) for p in (*mixed, params)])[3] == alone


def test_each_token_uses_the_next_random_number(convert: Convert) -> None:
    state = make_state(SamplingParams(seed=11))
    for step in range(5):
        logits = make_logits(step, spread=1.0)
        token = sample(convert(logits), [state])[0].token_id
        assert_drawn_from(token, logits[0], seed=11, draws_before=step)


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("vocab_size", [3, 256, 1500])
def test_extreme_random_numbers_choose_possible_tokens(convert: Convert, number: float, vocab_size: int) -> None:
    """The first and the last possible token, although the sums that the draw searches are rounded."""

    class Extreme(random.Random):
        def random(self) -> float:
            return number

    logits = make_logits(3, rows=200, spread=1.0)[:, :vocab_size]
    states = [make_state(SamplingParams(top_k=2 + row % 500)) for row in range(200)]
    for state in states:
        state._random = Extreme()
    for choice, row, state in zip(sample(convert(logits), states), logits, states, strict=True):
        possible = (row >= row.topk(min(state.params.top_k, vocab_size)).values[-1]).nonzero()
        assert choice.token_id == int(possible[0 if number == 0 else -1])


def test_logprobs_are_those_of_the_model(convert: Convert) -> None:
    """They are taken before bias, penalties and temperature, best first. 0 returns only the sampled token."""
    logits = make_logits(4, rows=4)
    asked = [
        SamplingParams(temperature=0.3, logprobs=3, logit_bias={9: 100.0}),
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(),
        SamplingParams(temperature=0, repetition_penalty=1.8, logprobs=20),
    ]
    expected = logits.log_softmax(dim=-1)
    sampled = sample(convert(logits), [make_state(params) for params in asked])
    for row, (choice, params) in enumerate(zip(sampled, asked, strict=True)):
        if params.logprobs is None:
            assert choice.logprob is None
            assert choice.top is None
            continue
        assert choice.logprob == pytest.approx(float(expected[row, choice.token_id]), abs=1e-5)
        if params.logprobs == 0:
            assert choice.top is None
            continue
        values, ids = expected[row].topk(params.logprobs)
        assert choice.top is not None
        assert [token for token, _ in choice.top] == ids.tolist()
        assert [logprob for _, logprob in choice.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert sampled[0].token_id == 9


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, logprobs=1),
        SamplingParams(temperature=0, logprobs=1, logit_bias={9: 100.0}),
        SamplingParams(temperature=0.3, logprobs=1, seed=1),
    ],
    ids=["greedy", "edited", "drawn"],
)
def test_logprobs_that_every_row_wants(convert: Convert, params: SamplingParams) -> None:
    """Only logits that nothing changes are read without a copy."""
    logits = make_logits(7, rows=2)
    expected = logits.log_softmax(dim=-1)
    states = [SamplerState(params, [1], frozenset()) for _ in range(2)]
    for row, choice in enumerate(sample(convert(logits), states)):
        assert choice.logprob == pytest.approx(float(expected[row, choice.token_id]), abs=1e-5)


@pytest.mark.parametrize("counts", [[0, 0, 0], [2, 0, 1]])
def test_logprobs_with_alternatives(convert: Convert, counts: list[int]) -> None:
    logits = make_logits(5, rows=3)
    expected = logits.log_softmax(dim=-1)
    logprobs, best = logprobs_and_best(convert(logits), convert(torch.tensor([4, 0, 1499])), counts)
    assert logprobs == pytest.approx([float(expected[0, 4]), float(expected[1, 0]), float(expected[2, 1499])], abs=1e-5)
    for row, count, pairs in zip(expected, counts, best, strict=True):
        assert (pairs is None) == (count == 0)
        values, ids = row.topk(count)
        assert [token for token, _ in pairs or ()] == ids.tolist()
        assert [value for _, value in pairs or ()] == pytest.approx(values.tolist(), abs=1e-5)


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_best_of_rows_with_equal_values(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 3000))
    k = data.draw(st.integers(1, min(size, 1024)))
    distinct = data.draw(st.integers(1, 4000))
    excluded = data.draw(st.integers(0, size))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    rows = torch.randint(distinct, (3, size), generator=generator).float()
    rows[:2, torch.randperm(size, generator=generator)[:excluded]] = -math.inf
    values, ids = topk(rows.numpy(), k)
    assert values.tolist() == rows.topk(k).values.tolist()
    for row, row_values, row_ids in zip(rows, values.tolist(), ids.tolist(), strict=True):
        assert len(set(row_ids)) == k
        assert row[row_ids].tolist() == row_values


def test_logprobs_of_no_rows(convert: Convert) -> None:
    nothing = convert(torch.tensor([], dtype=torch.long))
    assert logprobs_and_best(convert(make_logits(5, rows=0)), nothing, []) == ([], [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0), SamplingParams(top_p=0.5, typical_p=0.5, logprobs=2)]
)
def test_invalid_row_fails_alone(convert: Convert, bad: float, params: SamplingParams) -> None:
    logits = make_logits(6, rows=3)
    logits[1, 77] = bad
    good = SamplingParams(temperature=0, logprobs=1)
    sampled = sample(convert(logits), [make_state(good), make_state(params), make_state(good)])
    assert sampled[1].error is not None
    assert sampled[1].logprob is None
    for row in (0, 2):
        assert sampled[row].error is None
        assert sampled[row].token_id == int(logits[row].argmax())


def test_min_tokens_blocks_all_end_ids(convert: Convert) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 2], logits[0, 5], logits[0, 8] = 9.0, 8.0, 7.0
    state = make_state(SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(5,)))
    assert [sample(convert(logits), [state])[0].token_id for _ in range(3)] == [8, 8, 2]


@pytest.mark.parametrize(("bias", "edits"), [(None, False), ({1: 1.0}, True)])
def test_min_tokens_edit_no_logits_once_there_are_enough(bias: dict[int, float] | None, edits: bool) -> None:
    params = SamplingParams(min_tokens=2, logit_bias=bias)
    assert [make_state(params, output=[5] * count).edits_logits for count in range(4)] == [True, True, edits, edits]


def test_bad_words_are_never_completed(convert: Convert) -> None:
    """A one-token word is never generated. The last token of a longer word is not generated after its others."""
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 5], logits[0, 6], logits[0, 7], logits[0, 8] = 9.0, 8.0, 7.0, 6.0

    def best(output: list[int]) -> int:
        params = SamplingParams(temperature=0)
        state = make_state(params, [3, 4], output, bad_words=[[5], [3, 4, 6], [9, 7]])
        return sample(convert(logits), [state])[0].token_id

    assert best([]) == 6, "the prompt is not part of a word"
    assert best([4]) == 6
    assert best([3, 4]) == 7
    assert best([3, 4, 4]) == 6
    assert best([3, 4, 9]) == 6
    logits[0, 6] = 0.0
    assert best([9]) == 8


@given(
    words=st.lists(st.lists(st.integers(5, 8), min_size=1, max_size=4), max_size=12),
    output=st.lists(st.integers(5, 8), max_size=8),
)
@settings(deadline=None)
def test_any_bad_words_are_those_that_would_be_completed(words: list[list[int]], output: list[int]) -> None:
    completed = {word[-1] for word in words if (output[-len(word) + 1 :] if len(word) > 1 else []) == word[:-1]}
    logits = torch.zeros(1, VOCAB_SIZE).numpy()
    make_state(SamplingParams(), [5, 6], output, bad_words=words).edit_logits(logits[0])
    assert {token for token in range(VOCAB_SIZE) if logits[0, token] == -math.inf} == completed


@pytest.mark.parametrize("penalty", [5e-324, 1e-39, 1e300])
@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0])
def test_any_repetition_penalty_leaves_finite_numbers(convert: Convert, penalty: float, temperature: float) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 5], logits[0, 6], logits[0, 7] = 9.0, 3.0, -1.0
    state = make_state(SamplingParams(temperature=temperature, repetition_penalty=penalty), [6, 7, 8])
    (choice,) = sample(convert(logits), [state])
    assert choice.error is None
    if temperature < 1 or penalty < 1:
        assert choice.token_id == (6 if penalty < 1 else 5)


def test_samples_share_what_long_lists_become(convert: Convert) -> None:
    """Each of them would take some ten milliseconds, in which all other sequences wait."""
    bias, allowed, stops = dict.fromkeys(range(1100), 1.5), tuple(range(900, 1500)), frozenset(range(600, 1500))
    params = SamplingParams(temperature=0, logit_bias=bias, allowed_token_ids=allowed, min_tokens=1)
    states = [SamplerState(params.for_sample(n), [1], stops) for n in range(3)]
    before = SamplerState(msgspec.structs.replace(params, logit_bias={5: 1.5}), [1], stops)
    sample(convert(make_logits(1, rows=4)), [before, *states])
    assert len({id(table) for state in states for table in state._tables[2:] if table is not None}) == 3  # type: ignore[index]
    assert before._tables[2][0] is not None  # type: ignore[index]
    without = msgspec.structs.replace(params, min_tokens=0)
    more = [SamplerState(without, [1], stops) for _ in range(2)]
    sample(convert(make_logits(1, rows=2)), more)
    assert more[0]._tables[2] is more[1]._tables[2]  # type: ignore[index]
    logits = torch.zeros(1, VOCAB_SIZE)
    row = convert(logits)[0]
    SamplerState(msgspec.structs.replace(params, min_tokens=0), [1], stops).edit_logits(row)
    assert row[:900].max() == -math.inf
    assert set(row[900:1100].tolist()) == {1.5}
    assert set(row[1100:].tolist()) == {0.0}


WATERMARK = WatermarkLogitsProcessor(VOCAB_SIZE, device="cpu", greenlist_ratio=0.5)


def make_watermark(convert: Convert) -> Watermark:
    def watermark(input_ids: Any, scores: Any, /) -> Any:
        return convert(WATERMARK(torch.as_tensor(input_ids), torch.as_tensor(scores)))

    return watermark


def z_score(token_ids: list[int], before: int, ratio: float) -> float:
    """Return by how many standard deviations more tokens are on their predecessor's list than expected by chance.

    The list is drawn as in the paper (left hash), by a generator that is seeded with the preceding token.
    """
    hits = 0
    for last, token in zip([before, *token_ids], token_ids, strict=False):
        generator = torch.Generator().manual_seed(15485863 * last)
        hits += token in torch.randperm(VOCAB_SIZE, generator=generator)[: int(VOCAB_SIZE * ratio)].tolist()
    return (hits - ratio * len(token_ids)) / math.sqrt(len(token_ids) * ratio * (1 - ratio))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_watermark_is_detected_in_the_marked_row_only(convert: Convert, temperature: float) -> None:
    """Two rows of one batch have nearly flat logits. Only one of them is watermarked."""
    params = SamplingParams(temperature=temperature, seed=4)
    marked, plain = make_state(params, watermark=make_watermark(convert)), make_state(params)
    texts: list[list[int]] = [[], []]
    for step in range(120):
        row = make_logits(step, spread=1.0)
        for text, choice in zip(texts, sample(convert(row.repeat(2, 1)), [marked, plain]), strict=True):
            assert choice.error is None
            text.append(choice.token_id)
    assert z_score(texts[0], 1, 0.5) > 4
    assert abs(z_score(texts[1], 1, 0.5)) < 3


def test_watermark_starts_after_the_prompts_last_token(convert: Convert) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    for last in (1, 7, 1499):
        state = make_state(SamplingParams(temperature=0), [5, last], watermark=make_watermark(convert))
        expected = WATERMARK(torch.tensor([[last]]), logits.clone())
        assert sample(convert(logits), [state])[0].token_id == int(expected.argmax())


# Several tokens of one sequence


def sample_one_by_one(convert: Convert, logits: torch.Tensor, state: SamplerState, draft: list[int]) -> list[Sampled]:
    sampled: list[Sampled] = []
    for row, drafted in zip(logits, [*draft, None], strict=True):
        sampled += sample(convert(row[None]), [state])
        if sampled[-1].token_id != drafted or state.ended:
            break
    return sampled


def assert_same_as_one_by_one(
    convert: Convert, logits: torch.Tensor, make: Callable[[], SamplerState], wrong_at: int
) -> list[Sampled]:
    """Compare with a draft that is right up to `wrong_at`, and then the following token. Returns what was sampled."""
    right = [
        sampled.token_id for state in [make()] for row in logits for sampled in sample(convert(row[None]), [state])
    ]
    draft = right[:-1]
    draft[wrong_at:] = [(token + 1) % logits.shape[1] for token in draft[wrong_at:]]
    single, drafted = make(), make()
    expected = sample_one_by_one(convert, logits, single, draft)
    assert sample_drafts(convert(logits), [drafted], [draft]) == [expected]
    following = make_logits(9, spread=1.0)[:, : logits.shape[1]]
    assert sample(convert(following), [drafted]) == sample(convert(following), [single])
    return expected


@settings(deadline=None, max_examples=60)
@given(
    params=sampling_params,
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    logprobs=st.sampled_from([None, 0, 2]),
    bad_words=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3),
    watermarked=st.booleans(),
    plain=st.booleans(),
    logits_seed=st.integers(0, 10**6),
    num_drafted=st.integers(0, 6),
    wrong_at=st.integers(0, 7),
)
def test_draft_gives_the_same_as_one_token_at_a_time(
    convert: Convert,
    params: SamplingParams,
    temperature: float,
    logprobs: int | None,
    bad_words: list[list[int]],
    watermarked: bool,
    plain: bool,
    logits_seed: int,
    num_drafted: int,
    wrong_at: int,
) -> None:
    """Penalties, bad words, the watermark and `min_tokens` see the accepted tokens. Each takes one random number.

    A few tokens are much better than the others, so that they are repeated.
    """
    params = msgspec.structs.replace(params, temperature=temperature, logprobs=logprobs)
    if plain:
        params = SamplingParams(temperature=temperature, logprobs=logprobs, seed=params.seed)
    logits = make_logits(logits_seed, rows=num_drafted + 1, spread=1.0)
    logits[:, :10] += 6.0

    def make() -> SamplerState:
        if plain:
            return make_state(params)
        watermark = make_watermark(convert) if watermarked else None
        return make_state(params, [1, 4], [3], bad_words=bad_words, watermark=watermark)

    expected = assert_same_as_one_by_one(convert, logits, make, wrong_at)
    assert len(expected) == min(wrong_at, num_drafted) + 1


@settings(deadline=None, max_examples=30)
@given(
    params=st.lists(sampling_params | st.just(SamplingParams(temperature=0)), min_size=1, max_size=5),
    drafts=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=5, max_size=5),
    logits_seed=st.integers(0, 10**6),
)
def test_drafts_of_other_sequences_change_nothing(
    convert: Convert, params: list[SamplingParams], drafts: list[list[int]], logits_seed: int
) -> None:
    drafts = drafts[: len(params)]
    logits = make_logits(logits_seed, rows=sum(len(draft) + 1 for draft in drafts), spread=1.0)
    logits[:, :4] += 8.0
    alone, end = [], 0
    for param, draft in zip(params, drafts, strict=True):
        start, end = end, end + len(draft) + 1
        alone.append(sample_one_by_one(convert, logits[start:end], make_state(param), draft))
    assert sample_drafts(convert(logits), [make_state(param) for param in params], drafts) == alone


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_at", [0, 2, 9])
def test_draft_follows_the_grammar_to_its_end(
    convert: Convert, tmp_path: Path, temperature: float, wrong_at: int
) -> None:
    """After the text is complete, rows that were drafted further are ignored."""
    build_byte_bundle(tmp_path)
    vocabulary = Vocabulary(str(tmp_path / TOKENIZER_FILE), 257, (256,))

    def make() -> SamplerState:
        state = make_state(SamplingParams(temperature=temperature, seed=3))
        state.grammar = GrammarMatcher(vocabulary.load(), grammar_text(StructuredOutputs(regex="a[bc]d[ef]")), 257)
        return state

    logits = make_logits(2, rows=7)[:, :257]
    single, drafted = make(), make()
    right: list[int] = []
    while not single.ended:
        right.append(sample(convert(logits[len(right)][None]), [single])[0].token_id)
    assert re.fullmatch("a[bc]d[ef]", bytes(right).decode())
    draft = [*right, 0, 0]
    draft[wrong_at:] = [0] * len(draft[wrong_at:])
    (sampled,) = sample_drafts(convert(logits), [drafted], [draft])
    assert [choice.token_id for choice in sampled] == right[: wrong_at + 1]
    assert drafted.ended == (wrong_at > 2)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(min_p=0.1)])
def test_draft_ends_at_the_first_unusable_row(convert: Convert, params: SamplingParams) -> None:
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 7] = 99.0
    logits[2, 7] = math.inf
    (sampled,) = sample_drafts(convert(logits), [make_state(params)], [[7, 7, 7]])
    assert [choice.token_id for choice in sampled] == [7, 7, -1]
    assert isinstance(sampled[-1].error, RequestFailed)
    assert says(str(sampled[-1].error), "gave logits not finite")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"allowed_token_ids": (7,)}, InvalidRequest),
        ({"allowed_token_ids": (7,), "temperature": 0}, InvalidRequest),
        ({"logit_bias": {7: 1.0}, "repetition_penalty": 1.5}, RequestFailed),  # forbids nothing
    ],
)
def test_it_is_the_requests_fault_if_its_parameters_leave_no_token(
    convert: Convert, fields: dict[str, Any], kind: type[RequestError]
) -> None:
    logits = torch.full((1, VOCAB_SIZE), -math.inf)
    [sampled] = sample(convert(logits), [make_state(SamplingParams(**fields))])
    assert isinstance(sampled.error, kind)
