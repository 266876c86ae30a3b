"""Changes between two readings of the metrics."""

from __future__ import annotations

from collections.abc import Sequence

from lmi_handlers.metrics.series import Metric


class Interval:
    """The metrics of all processes over a period: how much counters have grown, and the last values of gauges."""

    def __init__(self, before: Sequence[float], after: Sequence[float]) -> None:
        self._before = before
        self._after = after

    def gauge(self, metric: Metric) -> float:
        """Return the last value of a gauge without a label."""
        return self._after[metric.first]

    def growth(self, metric: Metric) -> float:
        """Return how much all series of a counter have grown."""
        return sum(self._growth(cell) for cell in metric.cells)

    def growth_by_label(self, metric: Metric) -> dict[str, float]:
        """Return how much each series of a counter has grown."""
        return {value: self._growth(metric.first + i) for i, value in enumerate(metric.label_values)}

    def quantile(self, histogram: Metric, share: float) -> float | None:
        """Return the value that `share` of the observations do not exceed, None if there were none.

        As in PromQL, observations are taken to be spread evenly over their bucket, and those above all buckets count as
        the last bound.
        """
        counts = [self._growth(cell) for cell in histogram.cells[:-1]]
        rank, below, low = share * sum(counts), 0.0, 0.0
        if not sum(counts):
            return None
        for bound, count in zip(histogram.buckets, counts, strict=False):
            if count and below + count >= rank:
                return low + (bound - low) * (rank - below) / count
            below, low = below + count, bound
        return histogram.buckets[-1]

    def _growth(self, cell: int) -> float:
        return max(0.0, self._after[cell] - self._before[cell])
