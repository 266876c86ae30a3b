"""Drafts for speculative decoding without a second model: what followed the same tokens earlier in the sequence."""

from __future__ import annotations

from array import array

import numpy as np

NGRAM_SIZES = (2, 3, 4)
"""Numbers of last tokens to look for. The longest match gives the best draft."""
_LONGEST_PAUSE = 64


class PromptLookup:
    """Finds the last tokens of a sequence in the rest of it.

    The whole sequence is searched for each draft: 30 us for 32,000 tokens. An index would be slower to build than all
    these searches are, and the other sequences would wait meanwhile.

    A draft has at most `num_tokens` tokens, and at most twice as many as were right the last time, plus one. After one
    that cost more than it saved, it has no more than were right, and there is a pause, each time twice as long. So a
    text without repetitions costs little, and so does a batch in which there is no time to spare.
    """

    def __init__(self, num_tokens: int) -> None:
        self._most = self._count = num_tokens
        self._pause = 1
        self._next_length = 0
        self._tokens = array("i")

    def draft(self, token_ids: list[int]) -> list[int]:
        """Return tokens that may follow `token_ids`, which only grow between calls."""
        length = len(token_ids)
        if length < self._next_length:
            return []
        self._tokens.extend(token_ids[len(self._tokens) :])
        tokens = np.frombuffer(self._tokens, np.intc)
        ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1
        found = length
        for size in NGRAM_SIZES:
            ends = ends[ends >= size]
            ends = ends[tokens[ends - size] == tokens[length - size]]
            if not len(ends):
                break
            found = int(ends[-1])
        return token_ids[found : found + self._count]

    def accepted(self, num_accepted: int, *, length: int, cost: float = 0.0) -> None:
        """Record how many tokens of the last draft were right.

        `length` is the sequence's length after them. `cost` is the number of tokens that could have been generated
        without the draft in the time that it took.
        """
        if num_accepted > cost:
            self._count = min(self._most, 2 * num_accepted + 1)
            self._pause = 1
        else:
            self._count = max(1, num_accepted)
            self._next_length = length + self._pause
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
