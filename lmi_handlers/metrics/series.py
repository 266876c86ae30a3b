"""Metric declarations and Prometheus' text format.

Written by hand because prometheus_client cannot render TGI's counters: it names `tgi_request_count_total` in the `HELP`
and `TYPE` lines above `tgi_request_count`.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    """A metric and its series, which are known in advance: one per label value.

    Its values are `size` cells, starting at cell `first`. A counter or gauge series has one cell. A histogram series
    has one per bucket (not cumulative), one for values above all buckets, and one for the sum.
    """

    name: str
    kind: Kind
    unit: str
    documentation: str
    first: int
    label: str = ""
    label_values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()

    @property
    def head(self) -> tuple[str, str]:
        """The lines above its series."""
        return f"# HELP {self.name} {self.documentation}", f"# TYPE {self.name} {self.kind}"

    @property
    def width(self) -> int:
        """Cells per series."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1

    @property
    def size(self) -> int:
        """Cells of all series."""
        return self.width * len(self.label_values)

    @property
    def cells(self) -> range:
        """Positions of the cells of all series."""
        return range(self.first, self.first + self.size)


class Catalogue:
    """Metrics in the order of their cells. `size` is the number of cells."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.size = 0

    def counter(
        self, name: str, unit: str, documentation: str, label: str = "", values: Sequence[str] = ("",)
    ) -> Metric:
        """Declare a counter, with one series per label value."""
        return self._add(
            Metric(name, "counter", unit, documentation, self.size, label=label, label_values=tuple(values))
        )

    def gauge(self, name: str, unit: str, documentation: str, label: str = "", values: Sequence[str] = ("",)) -> Metric:
        """Declare a gauge, with one series per label value."""
        return self._add(Metric(name, "gauge", unit, documentation, self.size, label=label, label_values=tuple(values)))

    def histogram(self, name: str, unit: str, documentation: str, buckets: Sequence[float]) -> Metric:
        """Declare a histogram. `buckets` are the upper bounds, ascending."""
        return self._add(Metric(name, "histogram", unit, documentation, self.size, buckets=tuple(map(float, buckets))))

    def _add(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        self.size += metric.size
        return metric


Values = tuple[Sequence[float], Mapping[str, str]]
"""The cells of a model's metrics, and the labels that name it."""


def exposition(metrics: Sequence[Metric], models: Sequence[Values], *, labels_all: bool = False) -> str:
    """Return the text of all series of the models. vLLM's name the model; TGI's do not, unless `labels_all` is true."""
    lines: list[str] = []
    for metric in metrics:
        lines += metric.head
        for cells, model_labels in models:
            shared = model_labels if labels_all or metric.name.startswith("vllm:") else {}
            for position, value in enumerate(metric.label_values):
                labels = {**shared, metric.label: value} if metric.label else shared
                first = metric.first + position * metric.width
                lines += _series(metric, labels, cells[first : first + metric.width])
    return "\n".join([*lines, ""])


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return the line of one value."""
    return f"{name}{_braces(labels)} {_number(value)}"


def _series(metric: Metric, labels: Mapping[str, str], cells: Sequence[float]) -> Iterator[str]:
    name = metric.name
    if metric.kind != "histogram":
        yield sample(name, labels, cells[0])
        return
    count = 0.0
    for bound, cell in zip((*map(repr, metric.buckets), "+Inf"), cells[:-1], strict=True):
        count += cell
        yield sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield sample(f"{name}_sum", labels, cells[-1])
    yield sample(f"{name}_count", labels, count)


def _braces(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
