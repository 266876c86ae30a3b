"""CloudWatch's embedded metric format: a JSON object on a line of the log, of which CloudWatch makes metrics.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from lmi_handlers.metrics import catalogue
from lmi_handlers.telemetry.interval import Interval

_COUNTERS = {
    "Requests": catalogue.REQUESTS,
    "RequestsSucceeded": catalogue.SUCCESSES,
    "RequestsFailed": catalogue.FAILED,
    "PromptTokens": catalogue.PROMPT_TOKENS,
    "CachedPromptTokens": catalogue.CACHED_TOKENS,
    "GeneratedTokens": catalogue.GENERATION_TOKENS,
    "Preemptions": catalogue.ENGINE_COUNTERS["num_preemptions"],
}
_GAUGES = {"SequencesRunning": catalogue.RUNNING, "SequencesWaiting": catalogue.WAITING}
_LATENCIES = {
    "FirstTokenLatency": catalogue.TIME_TO_FIRST_TOKEN,
    "InterTokenLatency": catalogue.INTER_TOKEN_LATENCY,
    "RequestLatency": catalogue.DURATION,
    "QueueTime": catalogue.QUEUE_DURATION,
}
"""TGI's histograms where vLLM's first bucket ends at 0.3 s: an empty queue would have a median of 150 ms."""

_QUANTILES = {"P50": 0.5, "P90": 0.9, "P99": 0.99}
_CLASSES = ("2XX", "4XX", "5XX")
MODEL = "ModelName"


class EmfLines:
    """Writes the lines of one server. `dimensions` are those of every metric, besides the model's name."""

    def __init__(self, namespace: str, model_name: str, dimensions: Mapping[str, str]) -> None:
        self._namespace = namespace
        # CloudWatch refuses empty values, those with other characters than ASCII's and those above 1024 characters.
        named = {MODEL: model_name} | dict(dimensions)
        self._dimensions = {
            name: "".join(c if c.isascii() else "?" for c in value if c.isprintable())[:1024] or "-"
            for name, value in named.items()
        }

    def line(self, interval: Interval, milliseconds: int) -> bytes:
        """Return the line for a period that ended at `milliseconds` since 1970, with its line end."""
        values: dict[str, float] = {}
        definitions = []
        for name, unit, value in _metrics(interval):
            values[name] = value
            definitions.append({"Name": name, "Unit": unit})
        directive = {
            "Namespace": self._namespace,
            "Dimensions": [list(self._dimensions)],
            "Metrics": definitions,
        }
        document = {
            "_aws": {"Timestamp": milliseconds, "CloudWatchMetrics": [directive]},
            **self._dimensions,
            **values,
        }
        return msgspec.json.encode(document) + b"\n"


def _metrics(interval: Interval) -> Iterator[tuple[str, str, float]]:
    """Yield names, units and values. Omits latencies without observations and statuses without responses."""
    for name, counter in _COUNTERS.items():
        yield name, "Count", interval.growth(counter)
    responses = interval.growth_by_label(catalogue.RESPONSES)
    for kind in _CLASSES:
        yield f"Responses{kind}", "Count", sum(n for status, n in responses.items() if status[0] == kind[0])
    for status, number in responses.items():
        if number and status[0] in "45":
            yield f"Responses{status}", "Count", number
    for name, gauge in _GAUGES.items():
        yield name, "Count", interval.gauge(gauge)
    yield "KVCacheUsage", "Percent", round(100 * interval.gauge(catalogue.KV_CACHE_USAGE), 2)
    for name, histogram in _LATENCIES.items():
        for suffix, share in _QUANTILES.items():
            if (seconds := interval.quantile(histogram, share)) is not None:
                yield name + suffix, "Milliseconds", round(1000 * seconds, 3)
