"""Stop strings, compared with a reference that checks every prefix of the text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmi_handlers.text.stop import StopAutomaton, StopMatcher

# With two letters and short strings, nearly every example has overlapping and nested stop strings.
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)
PIECES = st.lists(st.text("abc", max_size=5), max_size=12)


def first_match(pieces: list[str], stop: tuple[str, ...], min_tokens: int = 0) -> tuple[int, int] | None:
    """Return the start and end of the stop string that ends first, or of the longest of those."""
    text, earliest = "".join(pieces), len("".join(pieces[:min_tokens]))
    for end in range(earliest + 1, len(text) + 1):
        lengths = [len(string) for string in stop if text[:end].endswith(string)]
        if lengths:
            return end - max(lengths), end
    return None


def feed_all(matcher: StopMatcher, pieces: list[str]) -> list[str]:
    released = []
    for piece in pieces:
        released += matcher.feed(piece)
        if matcher.matched:
            return released
    return released + matcher.flush()


@given(PIECES, STOPS, st.booleans(), st.integers(0, 4))
@example(["ab", "ab", "c"], ("abc",), False, 0)
@example(["aa", "a"], ("aa",), False, 1)
@example(["ab"], ("aba", "b"), False, 0)  # "b" ends first, within what may become "aba"
def test_text_is_cut_at_the_first_match(
    pieces: list[str], stop: tuple[str, ...], include: bool, min_tokens: int
) -> None:
    matcher = StopMatcher(StopAutomaton(stop), include_stop_str_in_output=include, min_tokens=min_tokens)
    released = feed_all(matcher, pieces)
    match = first_match(pieces, stop, min_tokens)
    if match is None:
        assert (matcher.matched, released) == (None, pieces)
    else:
        start, end = match
        assert matcher.matched == "".join(pieces)[start:end]
        assert "".join(released) == "".join(pieces)[: end if include else start]


@given(PIECES, STOPS, st.booleans())
def test_each_piece_is_returned_once_and_in_order(pieces: list[str], stop: tuple[str, ...], include: bool) -> None:
    matcher = StopMatcher(StopAutomaton(stop), include_stop_str_in_output=include)
    released = feed_all(matcher, pieces)
    assert len(released) <= len(pieces)
    assert all(piece.startswith(out) for piece, out in zip(pieces, released, strict=False))
    if matcher.matched:
        # The last piece completes the match: without it there is none.
        assert first_match(pieces[: len(released)], stop) is not None
        assert first_match(pieces[: len(released) - 1], stop) is None


@given(PIECES, STOPS, st.integers(0, 4))
@example(["ab"], ("ab",), 1)  # within min_tokens, so not held back as the start of a match
def test_only_text_that_may_still_match_is_held_back(pieces: list[str], stop: tuple[str, ...], min_tokens: int) -> None:
    matcher = StopMatcher(StopAutomaton(stop), min_tokens=min_tokens)
    released = 0
    for count, piece in enumerate(pieces, 1):
        released += len(matcher.feed(piece))
        if matcher.matched:
            return
        text = "".join(pieces[:count])
        prefixes = {string[:length] for string in stop for length in range(len(string))}
        open_length = max(len(prefix) for prefix in prefixes if text.endswith(prefix))
        held = pieces[released:count]
        assert len("".join(held)) >= open_length
        assert len("".join(held[1:])) < open_length or not held


@given(st.text("abc", max_size=30), STOPS, st.data())
def test_the_result_does_not_depend_on_how_the_text_is_split(
    text: str, stop: tuple[str, ...], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join(feed_all(StopMatcher(StopAutomaton(stop)), pieces)) == "".join(
        feed_all(StopMatcher(StopAutomaton(stop)), list(text))
    )


def test_a_stop_string_within_one_token() -> None:
    assert feed_all(StopMatcher(StopAutomaton(("\n",))), ["one", " two\nthree"]) == ["one", " two"]


def test_tokens_within_a_stop_string_have_no_text() -> None:
    matcher = StopMatcher(StopAutomaton(("\n\nUser:",)))
    assert matcher.feed("hi\n") == []
    assert matcher.feed("\n") == []
    assert matcher.feed("User") == []
    assert matcher.feed(": what") == ["hi", "", "", ""]
    assert matcher.matched


def test_the_stop_string_can_be_included_in_the_output() -> None:
    assert feed_all(StopMatcher(StopAutomaton(("END",)), include_stop_str_in_output=True), ["a E", "N", "D b"]) == [
        "a E",
        "N",
        "D",
    ]


def test_text_that_was_held_back_is_returned_unchanged_without_a_match() -> None:
    matcher = StopMatcher(StopAutomaton(("abcd",)))
    assert matcher.feed("xab") == []
    assert matcher.feed("c") == []
    assert matcher.feed("!") == ["xab", "c", "!"]
    assert not matcher.matched


@pytest.mark.timeout(60)
def test_long_stop_strings_and_texts_take_linear_time() -> None:
    # One step per character of the text and the stop string. Comparing from scratch at each token would take 10^9 steps.
    matcher = StopMatcher(StopAutomaton(("a" * 5_000 + "b",)))
    assert len("".join(feed_all(matcher, ["a"] * 200_000))) == 200_000
