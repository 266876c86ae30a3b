"""How many tokens of prompts and drafts a step may compute, so that those who wait for their next token notice little."""

from __future__ import annotations

_WEIGHT = 0.3
"""Of the latest step in the averages."""
_MEASURE_AFTER = 16
"""Steps with extra tokens after which one without shows again how long it takes to generate."""


class StepBudget:
    """The maximum number of tokens in a step, besides one for each generating sequence.

    `most` if nobody is generating. Otherwise as many as take as long as the step would take without them, but at least
    `least`: so they at most double the time between two tokens, unless even `least` tokens take longer. The times are
    those of the latest steps. So that they stay right while there are always such tokens, a step now and then has none.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = most
        self._least = min(least, most)
        self._decode_seconds: float | None = None
        self._seconds_per_token: float | None = None
        self._steps_with_extra = 0
        """Since the last step without them."""

    def tokens(self, num_generating: int) -> int:
        """Return the budget of the next step, in which `num_generating` sequences get a token."""
        if not num_generating:
            return self._most
        if self._steps_with_extra >= _MEASURE_AFTER:
            return 0
        if self._decode_seconds is None or not self._seconds_per_token:
            return self._least
        return min(self._most, max(self._least, int(self._decode_seconds / self._seconds_per_token)))

    def observe(self, seconds: float, *, num_generating: int, num_extra_tokens: int) -> None:
        """Take account of a step that took `seconds`."""
        if not num_extra_tokens:
            self._steps_with_extra = 0
            # A pause of the whole machine must not count as the model's pace, or prompts would take as long from then on.
            usual = seconds if self._decode_seconds is None else min(seconds, 2 * self._decode_seconds)
            self._decode_seconds = _average(self._decode_seconds, usual)
            return
        self._steps_with_extra += 1
        if 2 * num_extra_tokens < self._least:
            return  # too few to tell how long one takes
        if not num_generating:
            self._seconds_per_token = _average(self._seconds_per_token, seconds / num_extra_tokens)
        elif self._decode_seconds is not None:
            added = max(0.0, seconds - self._decode_seconds)
            self._seconds_per_token = _average(self._seconds_per_token, added / num_extra_tokens)


def _average(average: float | None, latest: float) -> float:
    return latest if average is None else average + _WEIGHT * (latest - average)
