"""Drafts: what followed the same tokens before, and nothing where that does not pay."""

from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from backends.paged.prompt_lookup import NGRAM_SIZES, PromptLookup


def test_draft_is_what_followed_last_time() -> None:
    assert PromptLookup(3).draft([1, 2, 3, 4, 5, 6, 1, 2]) == [3, 4, 5]
    assert PromptLookup(10).draft([1, 2, 3, 1, 2]) == [3, 1, 2]
    assert PromptLookup(2).draft([1, 2, 8, 9, 1, 2, 6, 7, 1, 2]) == [6, 7]


def test_longest_match_wins() -> None:
    assert PromptLookup(1).draft([1, 2, 3, 4, 70, 9, 9, 3, 4, 80, 1, 2, 3, 4]) == [70]


def test_nothing_is_drafted_without_a_repetition() -> None:
    assert PromptLookup(4).draft([1, 2, 3, 4, 5]) == []
    assert PromptLookup(4).draft([1]) == []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 5))
def test_growing_text_gives_the_same_as_reading_it_at_once(tokens: list[int], most: int) -> None:
    growing = PromptLookup(most)
    for length in range(1, len(tokens) + 1):
        draft = growing.draft(tokens[:length])
        assert draft == PromptLookup(most).draft(tokens[:length])
        known = tokens[:length]
        places = [
            end
            for size in NGRAM_SIZES
            for end in range(size, length)
            if size < length and known[end - size : end] == known[length - size :]
        ]
        assert bool(draft) is bool(places)
        assert not draft or any(draft == known[end : end + most] for end in places)


def test_a_long_prompt_holds_up_no_step() -> None:
    """Reading 300,000 tokens takes about 10 ms. An index of their n-grams would take a second."""
    prompt = random.Random(1).choices(range(30_000), k=300_000)
    seconds = []
    for _ in range(3):
        began = time.thread_time()
        PromptLookup(8).draft(prompt)
        seconds.append(time.thread_time() - began)
    assert min(seconds) < 0.2


def test_wrong_drafts_are_followed_by_longer_and_longer_pauses() -> None:
    lookup = PromptLookup(4)
    drafted = []
    tokens = [1, 2, 1, 2]
    for length in range(4, 300):
        if lookup.draft(tokens):
            drafted.append(length)
            lookup.accepted(0, length=length + 1)
        tokens += [tokens[-2]]
    assert 5 <= len(drafted) <= 12


def test_length_follows_what_was_right() -> None:
    lookup = PromptLookup(8)
    tokens = [1, 2, 3] * 10
    assert len(lookup.draft(tokens)) == 3  # no more of the text follows its last repetition
    long = [*range(20), *range(4)]
    lookup = PromptLookup(8)
    assert len(lookup.draft(long)) == 8
    lookup.accepted(1, length=len(long))
    assert len(lookup.draft(long)) == 3
    lookup.accepted(3, length=len(long))
    assert len(lookup.draft(long)) == 7


def test_drafts_that_save_less_than_they_cost_are_given_up() -> None:
    """Each time 3 of up to 8 tokens are right: too few if they cost 4 tokens, enough if they cost 2."""
    drafts = {}
    for cost in (4.0, 2.0):
        lookup, tokens, drafts[cost] = PromptLookup(8), [*range(20), *range(4)], 0
        for length in range(len(tokens), 500):
            if lookup.draft(tokens):
                drafts[cost] += 1
                lookup.accepted(3, length=length + 1, cost=cost)
            tokens.append(tokens[-20])
    assert drafts[4.0] < 20
    assert drafts[2.0] > 400
