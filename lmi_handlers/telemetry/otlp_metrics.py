"""Sends all metrics by OTLP, under the names of `/metrics`. Imports the SDK.

The cells are handed to the SDK's exporter as its own data types: its instruments can neither take over counts of other
processes nor read a histogram that has already been counted.
Source: https://opentelemetry.io/docs/specs/otel/metrics/data-model/
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from lmi_handlers.metrics.catalogue import CATALOGUE
from lmi_handlers.metrics.series import Metric
from lmi_handlers.telemetry.resource import server_resource

_UNITS = {"seconds": "s", "bytes": "By", "share": "1"}
_SCOPE = InstrumentationScope("lmi_handlers.metrics")


class OtlpMetrics:
    """Turns cells into OTLP's data. With `delta`, counts are those since the last `mark_sent`, else since the start."""

    def __init__(self, model_name: str, *, delta: bool) -> None:
        self._model_name = model_name
        self._delta = delta
        self._temporality = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
        self._resource = server_resource()
        self._since = time.time_ns()
        self._before: Sequence[float] = [0.0] * CATALOGUE.size
        self._latest: tuple[int, Sequence[float]] = self._since, self._before

    def data(self, cells: Sequence[float]) -> MetricsData:
        """Return the values of all cells."""
        now = time.time_ns()
        self._latest = now, cells
        metrics = [self._metric(metric, cells, now) for metric in CATALOGUE.metrics]
        scope = ScopeMetrics(scope=_SCOPE, metrics=metrics, schema_url="")
        return MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])

    def mark_sent(self) -> None:
        """Begin a new period with the latest `data`. Without this call, the next data has the counts of this period too."""
        if self._delta:
            self._since, self._before = self._latest

    def _metric(self, metric: Metric, cells: Sequence[float], now: int) -> OtlpMetric:
        data: Gauge | Histogram | Sum
        if metric.kind == "gauge":
            data = Gauge([NumberDataPoint(labels, 0, now, cells[first]) for labels, first in self._series(metric)])
        elif metric.kind == "counter":
            points = [
                NumberDataPoint(labels, self._since, now, cells[first] - self._before[first])
                for labels, first in self._series(metric)
            ]
            data = Sum(points, self._temporality, is_monotonic=True)
        else:
            grown = [cells[cell] - self._before[cell] for cell in metric.cells]
            counts = [round(count) for count in grown[:-1]]
            # The spec has no least and greatest value either, where they are unknown; its encoder leaves None out.
            point = HistogramDataPoint(
                attributes=next(self._series(metric))[0],
                start_time_unix_nano=self._since,
                time_unix_nano=now,
                count=sum(counts),
                sum=grown[-1],
                bucket_counts=counts,
                explicit_bounds=metric.buckets,
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
            data = Histogram([point], self._temporality)
        unit = _UNITS.get(metric.unit, f"{{{metric.unit}}}")
        return OtlpMetric(metric.name, metric.documentation, unit, data)

    def _series(self, metric: Metric) -> Iterator[tuple[dict[str, str], int]]:
        """Yield the labels of each series, and its first cell. All name the model: a collector hears of several."""
        shared = {"model_name": self._model_name}
        if metric.name.startswith("vllm:"):
            shared["engine"] = "0"
        for position, value in enumerate(metric.label_values):
            own = {metric.label: value} if metric.label else {}
            yield {**shared, **own}, metric.first + position * metric.width


def otlp_sender(model_name: str, temporality: str) -> Callable[[Sequence[float]], None]:
    """Return a function that sends all metrics to the collector. The exporter logs its failures."""
    exporter = OTLPMetricExporter()
    metrics = OtlpMetrics(model_name, delta=temporality != "cumulative")

    def send(cells: Sequence[float]) -> None:
        if exporter.export(metrics.data(cells)) is MetricExportResult.SUCCESS:
            metrics.mark_sent()

    return send
