"""Limits a step's tokens of prompts and drafts, so that those who wait for their next token notice little."""

from __future__ import annotations

_WEIGHT = 0.3
"""Of the latest step in the averages."""
_MEASURE_AFTER = 16
"""Steps with extra tokens after which one without shows again how long it takes to generate."""
_MAX_SHARES = 4
_MAX_SECONDS = 0.25
_WAITING_WEIGHT = 8
"""Of a prompt that waits, against a sequence that generates."""
_MULTIPLE = 8
"""Of the tokens in a step, because a runner may have to prepare for each new number of tokens."""


class StepBudget:
    """The maximum number of tokens in a step, besides one for each generating sequence.

    `most` if nobody is generating. Otherwise as many as take as long as the step would take without them, but at least
    `least`: so they at most double the time between two tokens, unless even `least` tokens take longer. If more than one
    prompt waits beside few sequences that generate, they may take longer, up to four times as long, or a quarter of a
    second: the sooner they generate too, the more tokens come from every step. The times are those of the latest steps. So
    that they stay right while there are always such tokens, a step now and then has none.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = most
        self._least = min(least, most)
        self._decode_seconds: dict[int, float] = {}
        """By the number of generating sequences: key n is for fewer than 2**n, but at least half of that."""
        self._seconds_per_token: float | None = None
        self._steps_with_extra = 0
        """Since the last step without them."""

    def tokens(self, num_generating: int, num_prompts: int = 0) -> int:
        """Return the budget of the next step, in which `num_generating` sequences get a token.

        `num_prompts` is the number of other sequences that can be computed now. Those that wait for memory or for
        somebody's place in the batch are not among them.
        """
        if not num_generating:
            return self._most
        if self._steps_with_extra >= _MEASURE_AFTER:
            return 0
        decode_seconds = self._decoding(num_generating)
        if decode_seconds is None or not self._seconds_per_token:
            return self._least
        most = max(_MAX_SHARES, _MAX_SECONDS / decode_seconds) if decode_seconds else _MAX_SHARES
        shares = min(max(1, _WAITING_WEIGHT * (num_prompts - 1) / num_generating), most)
        total = num_generating + int(shares * decode_seconds / self._seconds_per_token)
        return min(self._most, max(self._least, total // _MULTIPLE * _MULTIPLE - num_generating))

    def draft_cost(self, num_generating: int) -> float:
        """Return what drafting one token costs, in tokens that could be generated in the same time without drafts.

        0 if that is not known yet.
        """
        decode_seconds = self._decoding(num_generating)
        if not decode_seconds or self._seconds_per_token is None:
            return 0.0
        return self._seconds_per_token * num_generating / decode_seconds

    def observe(self, seconds: float, *, num_generating: int, num_extra_tokens: int) -> None:
        """Take account of a step that took `seconds`."""
        if not num_extra_tokens:
            self._steps_with_extra = 0
            self._observe_decoding(seconds, num_generating.bit_length())
            return
        self._steps_with_extra += 1
        if 2 * num_extra_tokens < self._least:
            return  # too few to tell how long one takes
        if not num_generating:
            self._seconds_per_token = _average(self._seconds_per_token, seconds / num_extra_tokens)
        elif (usual := self._decoding(num_generating)) is not None:
            self._seconds_per_token = _average(self._seconds_per_token, max(0.0, seconds - usual) / num_extra_tokens)

    def _observe_decoding(self, seconds: float, key: int) -> None:
        # A pause of the whole machine must not count as the model's pace, or prompts would take as long from then on.
        if key in self._decode_seconds:
            usual = self._decode_seconds[key]
            self._decode_seconds[key] = _average(usual, min(seconds, 2 * usual))
        else:
            closest = self._closest(key)
            longest = seconds if closest is None else self._decode_seconds[closest] * 2 ** (1 + max(0, key - closest))
            self._decode_seconds[key] = min(seconds, longest)

    def _decoding(self, num_generating: int) -> float | None:
        """Return how long a step without extra tokens takes, or None if there has been none."""
        closest = self._closest(num_generating.bit_length())
        return None if closest is None else self._decode_seconds[closest]

    def _closest(self, key: int) -> int | None:
        return min(self._decode_seconds, key=lambda known: abs(known - key), default=None)


def _average(average: float | None, latest: float) -> float:
    return latest if average is None else average + _WEIGHT * (latest - average)
