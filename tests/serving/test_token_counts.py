"""The tokens of an answer, and when the metrics learn of them."""

from __future__ import annotations

from pathlib import Path

from lmi_handlers.metrics import catalogue
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.serving.token_counts import TokenCounts


def counted(metrics: RequestMetrics) -> tuple[float, float]:
    """The generated tokens, and the gaps between tokens."""
    cells, _ = metrics.values()
    gaps = catalogue.INTER_TOKEN_LATENCY
    return cells[catalogue.GENERATION_TOKENS.first], sum(cells[gaps.first : gaps.first + len(gaps.buckets) + 1])


def test_tokens_are_added_at_the_first_then_each_half_second_and_at_the_end(tmp_path: Path) -> None:
    metrics = RequestMetrics(tmp_path, "m")
    counts = TokenCounts(2, metrics, shared=False)
    counts.add(0, 1, 10.0)
    assert counted(metrics) == (1, 0)
    counts.add(0, 2, 10.2)
    counts.add(1, 1, 10.4)
    assert counted(metrics) == (1, 0)
    counts.add(0, 1, 10.5)
    assert counted(metrics) == (5, 3), "a sequence has no gap before its first tokens"
    counts.add(1, 3, 10.6)
    counts.flush()
    assert counted(metrics) == (8, 6)
    counts.flush()
    assert counted(metrics) == (8, 6)
    assert (counts.of_sequence, counts.last_time) == ([4, 4], 10.6)


def test_the_engine_counts_the_tokens_of_shared_answers_but_not_their_gaps(tmp_path: Path) -> None:
    metrics = RequestMetrics(tmp_path, "m")
    counts = TokenCounts(1, metrics, shared=True)
    counts.add(0, 2, 10.0)
    counts.add(0, 2, 10.1)
    counts.flush()
    assert counted(metrics) == (0, 2)
