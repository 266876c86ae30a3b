"""Drafts for speculative decoding without a second model: what followed the same tokens earlier in the sequence."""

from __future__ import annotations

from collections.abc import Sequence

NGRAM_SIZES = (4, 3, 2)
"""Numbers of last tokens to look for. The longest match gives the best draft."""
_LONGEST_PAUSE = 64


class PromptLookup:
    """Finds the last tokens of a sequence in the rest of it. Each token is indexed once.

    A draft has at most `num_tokens` tokens, and at most twice as many as were right the last time, plus one. After a
    draft that was all wrong there is a pause, each time twice as long, so that a text without repetitions costs little.
    """

    def __init__(self, num_tokens: int) -> None:
        self._most = self._count = num_tokens
        self._pause = 1
        self._next_length = 0
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def draft(self, token_ids: Sequence[int]) -> list[int]:
        """Return tokens that may follow `token_ids`, which only grow between calls."""
        length = len(token_ids)
        if length < self._next_length:
            return []
        # The n-grams that end at the last token are not indexed yet, so each is found at an earlier place or not at all.
        for end in range(self._indexed + 1, length):
            for size in NGRAM_SIZES:
                if size <= end:
                    self._ends[tuple(token_ids[end - size : end])] = end
        self._indexed = max(self._indexed, length - 1)
        for size in NGRAM_SIZES:
            found = self._ends.get(tuple(token_ids[length - size :])) if size <= length else None
            if found is not None:
                return list(token_ids[found : found + self._count])
        return []

    def accepted(self, num_accepted: int, *, length: int) -> None:
        """Record how many tokens of the last draft were right. `length` is the sequence's length after them."""
        self._count = min(self._most, 2 * num_accepted + 1)
        if num_accepted:
            self._pause = 1
        else:
            self._next_length = length + self._pause
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
