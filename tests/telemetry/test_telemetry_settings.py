"""What the environment asks to be published, and the mistakes that it may have."""

from __future__ import annotations

from pathlib import Path

import pytest
from facts import raises
from serving import lmi_check

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.configuration import read_store
from lmi_handlers.telemetry import settings
from lmi_handlers.telemetry.settings import TelemetrySettings
from lmi_handlers.telemetry.traces import Traces

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environ", "metrics", "traces"),
    [
        ({}, False, False),
        (ENDPOINT, True, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "TRUE"}, False, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, True, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4318/v1/metrics"}, True, False),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True, True),
    ],
    ids=str,
)
def test_signals(environ: dict[str, str], metrics: bool, traces: bool) -> None:
    found = TelemetrySettings.from_environ(environ)
    assert (found.otlp_metrics, found.traces, found.emf) == (metrics, traces, False)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LMI_EMF": "yes"}, "LMI_EMF yes true false"),
        ({"LMI_EMF_PERIOD": "0"}, "LMI_EMF_PERIOD 0 number"),
        ({"LMI_EMF_PERIOD": "1e9"}, "LMI_EMF_PERIOD 1e9 number 0"),
        ({"LMI_EMF_NAMESPACE": "a b"}, "LMI_EMF_NAMESPACE a b 1 255"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER zipkin none"),
        (
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL grpc http/protobuf",
        ),
        (
            ENDPOINT | {"OTEL_METRIC_EXPORT_INTERVAL": "-1"},
            "OTEL_METRIC_EXPORT_INTERVAL -1 number 0",
        ),
        (
            {"OTEL_BSP_MAX_QUEUE_SIZE": "0"},
            "OTEL_BSP_MAX_QUEUE_SIZE 0 integer 1 1000000000",
        ),
        (
            {"OTEL_BSP_SCHEDULE_DELAY": "1.5"},
            "OTEL_BSP_SCHEDULE_DELAY 1.5 integer 1 1000000000",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317"},
            "OTEL_EXPORTER_OTLP_ENDPOINT localhost:4317 URL http://127.0.0.1:4318",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "grpc://u:secret@c:4317"},
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT grpc://******@c:4317",
        ),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER zipkin"),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "Deltas"},
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE Deltas cumulative delta lowmemory",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"}, "OTEL_EXPORTER_OTLP_ENDPOINT http:// URL"),
    ],
    ids=str,
)
def test_mistakes(environ: dict[str, str], message: str) -> None:
    with raises(ConfigError, message) as caught:
        TelemetrySettings.from_environ(environ)
    assert "secret" not in str(caught.value)


def test_nothing_is_published_by_default() -> None:
    assert TelemetrySettings.from_environ({}) == TelemetrySettings()


def test_a_batch_of_spans_fits_into_the_queue() -> None:
    settings = TelemetrySettings.from_environ({"OTEL_BSP_MAX_QUEUE_SIZE": "64"})
    assert (settings.span_queue, settings.span_batch) == (64, 64)
    worker = Traces(settings)
    worker.shutdown(1)


def test_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_LIBRARY", "opentelemetry.exporter.nowhere.at_all")
    assert not TelemetrySettings.from_environ({}).traces
    with raises(ConfigError, "installed -e [otel] OTEL_SDK_DISABLED"):
        TelemetrySettings.from_environ(ENDPOINT)


def test_mistakes_are_found_at_start(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "serving.properties").write_text("option.rolling_batch=echo\n")
    environ = {"LMI_MODEL_STORE": str(tmp_path), "OTEL_TRACES_EXPORTER": "zipkin"}
    with raises(ConfigError, "OTEL_TRACES_EXPORTER zipkin"):
        read_store(environ)  # of several models
    result = lmi_check(directory, environ={"LMI_EMF_NAMESPACE": "AWS/SageMaker"})
    assert result.returncode == 1
    assert "LMI_EMF_NAMESPACE has value 'AWS/SageMaker': must be" in result.stdout + result.stderr
