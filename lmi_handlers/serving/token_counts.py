"""Counts an answer's tokens as they arrive."""

from __future__ import annotations

from lmi_handlers.metrics.requests import RequestMetrics

_INTERVAL = 0.5
"""Seconds between two additions to the metrics. To add each token by itself takes as long as to detokenise and format it."""


class TokenCounts:
    """The tokens of each sequence of an answer, and when the last ones arrived.

    The metrics learn of them at the first token, then every half second in which tokens arrive, and at `flush`. The engine
    counts the tokens of `shared` answers itself, because several requests get them.
    """

    def __init__(self, sequences: int, metrics: RequestMetrics, *, shared: bool) -> None:
        self.of_sequence = [0] * sequences
        self.last_time: float | None = None
        """The monotonic time of the last tokens of all, None before the first."""
        self._last_times: list[float | None] = [None] * sequences
        self._metrics = metrics
        self._shared = shared
        self._new = 0
        self._gaps: list[tuple[float, int]] = []
        self._next_flush = 0.0

    def add(self, index: int, tokens: int, now: float) -> None:
        """Count `tokens` of sequence `index`, at least 1, that have arrived at the monotonic time `now`."""
        self.of_sequence[index] += tokens
        self._new += tokens
        previous = self._last_times[index]
        if previous is not None:
            self._gaps.append(((now - previous) / tokens, tokens))
        self._last_times[index] = self.last_time = now
        if now >= self._next_flush:
            self._next_flush = now + _INTERVAL
            self.flush()

    def flush(self) -> None:
        """Add to the metrics what they do not have."""
        if self._new:
            self._metrics.generated(0 if self._shared else self._new, self._gaps)
            self._new, self._gaps = 0, []
