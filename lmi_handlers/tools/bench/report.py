"""The figures of a run. Names and definitions are those of `vllm bench serve`."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lmi_handlers.tools.bench.load import Timing
from lmi_handlers.tools.client.report_files import json_file

PERCENTILES = (50, 75, 90, 95, 99)


class Distribution(msgspec.Struct, frozen=True):
    """Milliseconds. `percentiles` maps `p50` and so on."""

    mean: float
    min: float
    max: float
    percentiles: Mapping[str, float]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Failed requests count in `failed` and `errors` only.

    `input_tokens` is None if the API does not count them.

    * `ttft`: from sending a request to the first event with text.
    * `itl`: between two events with text of a stream.
    * `tpot`: from the first to the last of these events, per token after the first.
    * `e2el`: from sending a request to the end of its answer.
    """

    duration_seconds: float
    completed: int
    failed: int
    errors: Mapping[str, int]
    input_tokens: int | None
    output_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float | None
    goodput_requests_per_second: float | None
    max_concurrency: int
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2el_ms: Distribution | None


def make_report(timings: Sequence[Timing], duration: float, goodput: Mapping[str, float]) -> Report:
    """Compute the figures. `goodput` has limits in milliseconds by `ttft`, `tpot` or `e2el`."""
    complete = [timing for timing in timings if timing.error is None]
    metrics = [_metrics(timing) for timing in complete]
    counts = [timing.prompt_tokens for timing in complete if timing.prompt_tokens is not None]
    inputs = sum(counts) if len(counts) == len(complete) else None
    outputs = sum(timing.num_tokens for timing in complete)
    good = sum(all(values.get(name, 0.0) <= limit for name, limit in goodput.items()) for values in metrics)
    gaps = [later - earlier for timing in complete for earlier, later in itertools.pairwise(timing.arrivals)]
    return Report(
        duration_seconds=duration,
        completed=len(complete),
        failed=len(timings) - len(complete),
        errors=dict(Counter(timing.error for timing in timings if timing.error is not None).most_common(20)),
        input_tokens=inputs,
        output_tokens=outputs,
        requests_per_second=len(complete) / duration,
        output_tokens_per_second=outputs / duration,
        total_tokens_per_second=None if inputs is None else (inputs + outputs) / duration,
        goodput_requests_per_second=good / duration if goodput else None,
        max_concurrency=max((count for _, count in running_over_time(timings)), default=0),
        ttft_ms=distribution([values["ttft"] for values in metrics if "ttft" in values]),
        tpot_ms=distribution([values["tpot"] for values in metrics if "tpot" in values]),
        itl_ms=distribution([1000 * gap for gap in gaps]),
        e2el_ms=distribution([values["e2el"] for values in metrics]),
    )


def _metrics(timing: Timing) -> dict[str, float]:
    """Return the milliseconds of one request, by the names of `Report`."""
    values = {"e2el": 1000 * (timing.ended - timing.started)}
    if timing.arrivals:
        values["ttft"] = 1000 * (timing.arrivals[0] - timing.started)
        if timing.num_tokens > 1:
            values["tpot"] = 1000 * (timing.arrivals[-1] - timing.arrivals[0]) / (timing.num_tokens - 1)
    return values


def distribution(values: Sequence[float]) -> Distribution | None:
    """Return the distribution of some values, with percentiles interpolated as NumPy does. None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Distribution(
        mean=math.fsum(ordered) / len(ordered),
        min=ordered[0],
        max=ordered[-1],
        percentiles={f"p{percent}": _percentile(ordered, percent) for percent in PERCENTILES},
    )


def _percentile(ordered: Sequence[float], percent: float) -> float:
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def running_over_time(timings: Sequence[Timing]) -> list[tuple[float, int]]:
    """Return how many requests were unanswered, after each change."""
    changes = sorted([(timing.started, 1) for timing in timings] + [(timing.ended, -1) for timing in timings])
    running, counts = 0, []
    for when, change in changes:
        running += change
        counts.append((when, running))
    return counts


def tokens_over_time(timings: Sequence[Timing], duration: float, intervals: int) -> list[tuple[float, float]]:
    """Return the events with text per second in each of `intervals` equal parts of the run, at its middle."""
    arrivals = sorted(arrival for timing in timings for arrival in timing.arrivals)
    width = duration / intervals
    edges = [bisect.bisect_left(arrivals, width * place) for place in range(intervals + 1)]
    return [((place + 0.5) * width, (edges[place + 1] - edges[place]) / width) for place in range(intervals)]


def as_text(report: Report) -> str:
    """Return the figures as a table for a terminal."""
    rows = [
        ("Completed requests", f"{report.completed}"),
        ("Failed requests", f"{report.failed}"),
        ("Duration", f"{report.duration_seconds:.2f} s"),
        ("Input tokens", "unknown" if report.input_tokens is None else f"{report.input_tokens}"),
        ("Output tokens", f"{report.output_tokens}"),
        ("Requests per second", f"{report.requests_per_second:.2f}"),
        ("Output tokens per second", f"{report.output_tokens_per_second:.1f}"),
        ("Most requests at a time", f"{report.max_concurrency}"),
    ]
    if report.total_tokens_per_second is not None:
        rows.append(("Total tokens per second", f"{report.total_tokens_per_second:.1f}"))
    if report.goodput_requests_per_second is not None:
        rows.append(("Goodput, requests per second", f"{report.goodput_requests_per_second:.2f}"))
    lines = [f"{name:<32}{value:>12}" for name, value in rows]
    lines += ["", f"{'Milliseconds':<32}{'mean':>10}" + "".join(f"{f'p{percent}':>10}" for percent in PERCENTILES)]
    for title, values in named_distributions(report):
        figures = [values.mean, *values.percentiles.values()]
        lines.append(f"{title:<32}" + "".join(f"{figure:>10.2f}" for figure in figures))
    lines += [f"{count} x {error}" for error, count in report.errors.items()]
    return "\n".join(lines) + "\n"


def named_distributions(report: Report) -> list[tuple[str, Distribution]]:
    """Return the distributions that have been measured, with their titles."""
    named = [
        ("Time to first token", report.ttft_ms),
        ("Time per output token", report.tpot_ms),
        ("Inter-token latency", report.itl_ms),
        ("Request latency", report.e2el_ms),
    ]
    return [(title, values) for title, values in named if values is not None]


def as_json(report: Report, arguments: Mapping[str, Any]) -> bytes:
    """Return the figures and what was asked for as a JSON document."""
    document = {"arguments": arguments, "report": msgspec.to_builtins(report)}
    return json_file(document)
