"""How many tokens of prompts a step may compute, so that those who wait for their next token notice little of it."""

from __future__ import annotations

_WEIGHT = 0.2
"""Of the latest step in the averages."""


class PrefillBudget:
    """The maximum number of prompt tokens in a step.

    `most` if nobody is generating. Otherwise as many as take as long as the step would take without them, but at least
    `least`: so prompts at most double the time between two tokens, on any hardware. The times are those of the latest
    steps.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = most
        self._least = min(least, most)
        self._decode_seconds: float | None = None
        self._seconds_per_token: float | None = None

    def tokens(self, num_generating: int) -> int:
        """Return the budget of the next step, in which `num_generating` sequences get a token."""
        if not num_generating:
            return self._most
        if self._decode_seconds is None or not self._seconds_per_token:
            return self._least
        return min(self._most, max(self._least, int(self._decode_seconds / self._seconds_per_token)))

    def observe(self, seconds: float, *, num_generating: int, num_prefill_tokens: int) -> None:
        """Take account of a step that took `seconds`."""
        if not num_prefill_tokens:
            self._decode_seconds = _average(self._decode_seconds, seconds)
        elif not num_generating:
            self._seconds_per_token = _average(self._seconds_per_token, seconds / num_prefill_tokens)
        elif self._decode_seconds is not None:
            added = max(0.0, seconds - self._decode_seconds)
            self._seconds_per_token = _average(self._seconds_per_token, added / num_prefill_tokens)


def _average(average: float | None, latest: float) -> float:
    return latest if average is None else average + _WEIGHT * (latest - average)
