"""The cap on thoughts: exact for any tokens, any budget and marks of several tokens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.sampling.sampler import SamplerState, sample, sample_drafts
from backends.sampling.thinking import ThinkingCap
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.thinking import ThinkingMarks

# Each letter is a token. "(t" or "[t" begins a thought, and ")" or "te]" ends it. "|" is the end of a turn.
LETTERS = "()[]te.|"
BEGIN, END = r"(?:\(t|\[t)", r"(?:\)|te\])"
THOUGHT = re.compile(rf"{BEGIN}(.*?)(?:{END}|$)")


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def marks(forced_end: str) -> ThinkingMarks:
    return ThinkingMarks(
        begins=(ids("(t"), ids("[t")),
        ends=(ids(")"), ids("te]")),
        forced_end=ids(forced_end),
        special=frozenset(ids("|")),
    )


def capped(text: str, budget: int, prompt: str = "", forced_end: str = "te]") -> str:
    """Return what is generated where a model would like to write `text`."""
    cap = ThinkingCap(marks(forced_end), budget, ids(prompt))
    written, wishes = "", iter(text)
    while (letter := cap.forced or next((ord(wish) for wish in wishes), None)) is not None:
        written += chr(letter)
        cap.record(letter)
    return written


def open_thought(text: str) -> str | None:
    """Return the thought that `text` ends in, or None if it ends in none."""
    thoughts = list(THOUGHT.finditer(text))
    last = thoughts[-1] if thoughts else None
    return None if last is None or re.search(rf"{END}$", last.group()[2:]) else last.group(1)


@given(st.text(LETTERS, max_size=40), st.integers(0, 9))
@example("(tte.]", 1)
@example("(tt(te]", 1)
@example("[tte]", 2)
def test_no_thought_is_longer_than_the_budget(text: str, budget: int) -> None:
    written = capped(text, budget)
    assert all(len(thought) <= budget for thought in THOUGHT.findall(written))
    assert open_thought(written) is None or len(open_thought(written) or "") < budget


@given(st.text(LETTERS, max_size=40), st.integers(0, 9))
def test_nothing_is_forced_before_the_budget_is_used_up(text: str, budget: int) -> None:
    cap, written = ThinkingCap(marks("te]"), budget, ()), ""
    ending = False
    for wish in text:
        thought = None if ending else open_thought(written)
        assert ending or (cap.forced is not None) == (thought is not None and len(thought) >= budget)
        letter = chr(cap.forced) if cap.forced is not None else wish
        ending = cap.forced is not None and letter != "]"
        written += letter
        cap.record(ord(letter))


@given(st.text(LETTERS, max_size=20), st.text(LETTERS, max_size=20), st.integers(0, 5))
def test_the_model_writes_what_it_likes_beside_the_forced_ends(before: str, after: str, budget: int) -> None:
    """What is not forced is the model's text, in order and in full."""
    cap = ThinkingCap(marks("te]"), budget, ids(before))
    free = []
    for wish in after:
        while cap.forced is not None:
            cap.record(cap.forced)
        free.append(wish)
        cap.record(ord(wish))
    assert "".join(free) == after
    assert len(capped(after, budget, before)) >= len(after)
    assert capped(after, 10**6, before) == after


@pytest.mark.parametrize(
    ("prompt", "text", "budget", "written"),
    [
        ("..(t", "......", 3, "...te]..."),  # the chat template opens the thought
        ("..(t..", "......", 3, ".te]....."),  # and the request begins it
        ("..(t.....", "...", 3, "te]..."),
        ("..(t", "..", 0, "te].."),
        ("..(t.)", "...", 0, "..."),
        ("..(tte]", "...", 0, "..."),
        ("(t..|..", "...", 0, "..."),  # somebody wrote a mark in an earlier turn
        ("(t..|[t", "...", 1, ".te].."),
        ("..(", "t..", 1, "t.te]."),  # a mark with one token in the prompt
        ("..(t)(t", "..", 1, ".te]."),
        ("", "..(t...).(t....", 2, "..(t..te].).(t..te].."),  # each thought has a budget of its own
        ("", "(t.t.", 2, "(t.te]."),  # the thought's last tokens begin the forced end
        ("", "(tte.", 2, "(tte]."),
        ("", "(t.te..", 3, "(t.te].."),
        ("(tt", "...", 1, "e]..."),
    ],
)
def test_what_is_written(prompt: str, text: str, budget: int, written: str) -> None:
    assert capped(text, budget, prompt) == written


def test_a_forced_end_may_go_on_where_the_answer_begins() -> None:
    """gpt-oss ends a thought with `<|end|>`, and is then made to begin its final message."""
    assert capped("(t.....", 2, forced_end=").(e") == "(t..).(e..."
    assert capped("(t.).(t....", 2, forced_end=").(e") == "(t.).(t..).(e.."


def test_a_thought_may_begin_far_back_in_the_prompt() -> None:
    prompt = [ord(".")] * 100_000
    assert ThinkingCap(marks("te]"), 0, prompt).forced is None
    assert ThinkingCap(marks("te]"), 0, [*ids("(t"), *prompt]).forced == ord("t")


# In the sampler

VOCAB_SIZE = 32
TOKENS = ThinkingMarks(begins=((3,),), ends=((4, 5),), forced_end=(4, 5))


def state(budget: int, prompt: list[int], **params: Any) -> SamplerState:
    sampling = SamplingParams(**{"temperature": 0.0, **params})
    return SamplerState(sampling, prompt, frozenset({2}), thinking=ThinkingCap(TOKENS, budget, prompt))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 1.0, "seed": 1, "top_k": 1, "top_p": 0.1, "min_p": 0.5, "typical_p": 0.5},
        {"allowed_token_ids": (9, 10)},
        {"logit_bias": {4: -100.0}, "repetition_penalty": 2.0, "presence_penalty": 2.0},
        {"min_tokens": 20, "max_tokens": 20},
    ],
)
def test_the_end_is_forced_whatever_else_is_asked(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(0).normal(size=(7, VOCAB_SIZE)).astype(np.float32)
    logits[:, 3:6] = -1.0
    capped_state = state(2, [1, 3], logprobs=1, **params)
    chosen = [sample(row[None].copy(), [capped_state])[0] for row in logits]
    assert [choice.token_id for choice in chosen[2:4]] == [4, 5]
    for choice, row in zip(chosen, logits, strict=True):
        assert choice.error is None
        total = np.log(np.exp(row.astype(np.float64)).sum())
        assert choice.logprob == pytest.approx(row[choice.token_id] - total, abs=1e-5)


@given(st.integers(0, 4), st.lists(st.integers(3, 6), max_size=6), st.sampled_from([0.0, 1.0]), st.integers(0, 9))
def test_drafts_change_nothing(budget: int, draft: list[int], temperature: float, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(len(draft) + 1, VOCAB_SIZE)).astype(np.float32)
    params = {"temperature": temperature, "seed": seed}
    at_once = sample_drafts(logits.copy(), [state(budget, [1, 3], **params)], [draft])[0]
    one_by_one, single = [], state(budget, [1, 3], **params)
    for row, drafted in zip(logits, [*draft, None], strict=True):
        one_by_one += sample(row[None].copy(), [single])
        if one_by_one[-1].token_id != drafted:
            break
    assert at_once == one_by_one
