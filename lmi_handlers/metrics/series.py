"""Declarations of metrics, and Prometheus' text format.

Written by hand because prometheus_client lets no counter be called `tgi_request_count`: it appends `_total`.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    """A metric and all of its series, known in advance: one, or one for each of `label_values`.

    Its numbers are `size` cells from number `first` on. A series of a counter or gauge has one; a series of a histogram has
    one for each of `buckets`, not cumulative, one for what is above them all, and one for the sum.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    first: int
    label: str = ""
    label_values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Cells of one series."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1

    @property
    def size(self) -> int:
        """Cells of all of them."""
        return self.width * len(self.label_values)


class Catalogue:
    """Metrics in the order of their cells. `size` is the number of cells."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.size = 0

    def counter(self, name: str, unit: str, meaning: str, label: str = "", values: Sequence[str] = ("",)) -> Metric:
        """Declare what only grows, with a series for each of the label's `values`."""
        return self._add(Metric(name, "counter", unit, meaning, self.size, label=label, label_values=tuple(values)))

    def gauge(self, name: str, unit: str, meaning: str) -> Metric:
        """Declare what is so at the moment."""
        return self._add(Metric(name, "gauge", unit, meaning, self.size))

    def histogram(self, name: str, unit: str, meaning: str, buckets: Sequence[float]) -> Metric:
        """Declare how values are distributed; `buckets` are the upper bounds, ascending."""
        return self._add(Metric(name, "histogram", unit, meaning, self.size, buckets=tuple(map(float, buckets))))

    def _add(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        self.size += metric.size
        return metric


def exposition(metrics: Sequence[Metric], cells: Sequence[float], model_labels: Mapping[str, str]) -> str:
    """Return the text of all series. vLLM's have `model_labels`; TGI's do not name the model."""
    lines: list[str] = []
    for metric in metrics:
        lines += (f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}")
        shared = model_labels if metric.name.startswith("vllm:") else {}
        for position, value in enumerate(metric.label_values):
            labels = {**shared, metric.label: value} if metric.label else shared
            first = metric.first + position * metric.width
            lines += _series(metric, labels, cells[first : first + metric.width])
    return "\n".join([*lines, ""])


def _series(metric: Metric, labels: Mapping[str, str], cells: Sequence[float]) -> Iterator[str]:
    name = metric.name
    if metric.kind != "histogram":
        yield f"{name}{_braces(labels)} {_number(cells[0])}"
        return
    count = 0.0
    for bound, cell in zip((*map(repr, metric.buckets), "+Inf"), cells[:-1], strict=True):
        count += cell
        yield f"{name}_bucket{_braces({**labels, 'le': bound})} {_number(count)}"
    yield f"{name}_sum{_braces(labels)} {_number(cells[-1])}"
    yield f"{name}_count{_braces(labels)} {_number(count)}"


def _braces(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
