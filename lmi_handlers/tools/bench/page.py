"""The report as one HTML page with plots, which needs nothing from elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lmi_handlers.tools.bench.load import Timing
from lmi_handlers.tools.bench.report import Report, as_text, running_over_time, tokens_over_time
from lmi_handlers.tools.client.page import html_page, html_text

_WIDTH, _HEIGHT, _MARGIN = 560, 220, 44
_INTERVALS = 60
_BARS = 40
_MOST_POINTS = 2000

_STYLE = """pre { overflow-x: auto } main { display: flex; flex-wrap: wrap; gap: 1rem }
figure { margin: 0; max-width: 100% } svg { max-width: 100%; height: auto; font-size: 11px; fill: currentColor }
.line { fill: none; stroke: #2878c8; stroke-width: 1.5 } .mark { fill: #2878c8 } .axis { stroke: currentColor; opacity: .4 }"""


def as_page(report: Report, timings: Sequence[Timing], arguments: Mapping[str, Any]) -> str:
    """Return the page."""
    complete = [timing for timing in timings if timing.error is None]
    first = [1000 * (timing.arrivals[0] - timing.started) for timing in complete if timing.arrivals]
    gaps = [1000 * (later - earlier) for timing in complete for earlier, later in itertools.pairwise(timing.arrivals)]
    latencies = [(timing.started, timing.ended - timing.started) for timing in complete]
    plots = [
        _histogram("Time to first token", "ms", first),
        _histogram("Inter-token latency", "ms", gaps),
        _line("Tokens per second", tokens_over_time(timings, report.duration_seconds, _INTERVALS)),
        _line("Unanswered requests", running_over_time(timings)),
        _scatter("Seconds per request, by the time of its start", latencies),
    ]
    given = "".join(f"<tr><th>{html_text(name)}<td>{html_text(value)}" for name, value in arguments.items())
    body = (
        f"<h1>lmi bench</h1><table>{given}</table><pre>{html_text(as_text(report))}</pre><main>{''.join(plots)}</main>"
    )
    return html_page("lmi bench", _STYLE, body)


def _histogram(title: str, unit: str, values: Sequence[float]) -> str:
    """Draw how often values occur. Those above the 99th percentile share the last bar."""
    if not values:
        return ""
    ordered = sorted(values)
    low, high = ordered[0], ordered[int(0.99 * (len(ordered) - 1))]
    width = (high - low) / _BARS or 1.0
    counts = [0] * _BARS
    for value in values:
        counts[min(int((value - low) / width), _BARS - 1)] += 1
    scale_x, scale_y = _scale(low, low + width * _BARS, _WIDTH), _scale(0, max(counts), _HEIGHT, flipped=True)
    bars = "".join(
        f'<rect class="mark" x="{scale_x(low + place * width):.1f}" y="{scale_y(count):.1f}" '
        f'width="{scale_x(width) - scale_x(0) - 1:.1f}" height="{scale_y(0) - scale_y(count):.1f}"/>'
        for place, count in enumerate(counts)
    )
    return _figure(f"{title} ({unit})", bars, (low, low + width * _BARS), (0, max(counts)))


def _line(title: str, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    ends, top = (0.0, points[-1][0]), max(value for _, value in points)
    scale_x, scale_y = _scale(*ends, _WIDTH), _scale(0, top, _HEIGHT, flipped=True)
    drawn = " ".join(f"{scale_x(when):.1f},{scale_y(value):.1f}" for when, value in _thinned(points))
    return _figure(f"{title}, over seconds", f'<polyline class="line" points="{drawn}"/>', ends, (0, top))


def _scatter(title: str, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    ends, top = (0.0, max(when for when, _ in points)), max(value for _, value in points)
    scale_x, scale_y = _scale(*ends, _WIDTH), _scale(0, top, _HEIGHT, flipped=True)
    marks = "".join(
        f'<circle class="mark" r="2" cx="{scale_x(when):.1f}" cy="{scale_y(value):.1f}"/>'
        for when, value in _thinned(points)
    )
    return _figure(title, marks, ends, (0, top))


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return points[:: math.ceil(len(points) / _MOST_POINTS)]


class _scale:  # noqa: N801  used as a function
    """Maps values to places along an axis of `length` pixels."""

    def __init__(self, low: float, high: float, length: int, *, flipped: bool = False) -> None:
        self._low, self._span = low, (high - low) or 1.0
        self._length, self._flipped = length - 2 * _MARGIN, flipped

    def __call__(self, value: float) -> float:
        part = (value - self._low) / self._span
        return _MARGIN + self._length * (1 - part if self._flipped else part)


def _figure(title: str, drawing: str, ends_x: tuple[float, float], ends_y: tuple[float, float]) -> str:
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    labels = [
        (_MARGIN, bottom + 16, "start", f"{ends_x[0]:.4g}"),
        (right, bottom + 16, "end", f"{ends_x[1]:.4g}"),
        (_MARGIN - 4, bottom, "end", f"{ends_y[0]:.4g}"),
        (_MARGIN - 4, _MARGIN + 8, "end", f"{ends_y[1]:.4g}"),
    ]
    texts = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in labels)
    axes = f'<path class="axis" fill="none" d="M{_MARGIN} {_MARGIN}V{bottom}H{right}"/>'
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'role="img" aria-label="{escape(title)}">{axes}{drawing}{texts}</svg></figure>'
    )
