"""What the environment asks to be published, and the mistakes that it may have."""

from __future__ import annotations

from pathlib import Path

import pytest
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
        ({"LMI_EMF": "yes"}, "LMI_EMF has value 'yes': must be true or false"),
        ({"LMI_EMF_PERIOD": "0"}, "LMI_EMF_PERIOD has value '0': must be a number above 0"),
        ({"LMI_EMF_PERIOD": "1e9"}, "LMI_EMF_PERIOD has value '1e9': must be a number above 0"),
        ({"LMI_EMF_NAMESPACE": "a b"}, "LMI_EMF_NAMESPACE has value 'a b': must be 1 to 255 letters"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER has value 'zipkin': must be one of otlp, none"),
        (
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL has value 'grpc': must be http/protobuf",
        ),
        (
            ENDPOINT | {"OTEL_METRIC_EXPORT_INTERVAL": "-1"},
            "OTEL_METRIC_EXPORT_INTERVAL has value '-1': must be a number above 0",
        ),
        (
            {"OTEL_BSP_MAX_QUEUE_SIZE": "0"},
            "OTEL_BSP_MAX_QUEUE_SIZE has value '0': must be an integer from 1 to 1000000000",
        ),
        (
            {"OTEL_BSP_SCHEDULE_DELAY": "1.5"},
            "OTEL_BSP_SCHEDULE_DELAY has value '1.5': must be an integer from 1 to 1000000000",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317"},
            "OTEL_EXPORTER_OTLP_ENDPOINT has value 'localhost:4317': must be a URL such as http://127.0.0.1:4318",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "grpc://u:secret@c:4317"},
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT has value 'grpc://******@c:4317': must be a",
        ),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER has value"),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "Deltas"},
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE has value 'Deltas': must be one of cumulative, delta, lowm",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"}, "OTEL_EXPORTER_OTLP_ENDPOINT has value 'http://': must be a URL"),
    ],
    ids=str,
)
def test_mistakes(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TelemetrySettings.from_environ(environ)
    assert message in str(caught.value)
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
    with pytest.raises(ConfigError, match=r"not installed: .*pip install -e '.*\[otel\]', or set OTEL_SDK_DIS"):
        TelemetrySettings.from_environ(ENDPOINT)


def test_mistakes_are_found_at_start(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "serving.properties").write_text("option.rolling_batch=echo\n")
    environ = {"LMI_MODEL_STORE": str(tmp_path), "OTEL_TRACES_EXPORTER": "zipkin"}
    with pytest.raises(ConfigError, match="OTEL_TRACES_EXPORTER has value 'zipkin': must be one of"):
        read_store(environ)  # of several models
    result = lmi_check(directory, environ={"LMI_EMF_NAMESPACE": "AWS/SageMaker"})
    assert result.returncode == 1
    assert "LMI_EMF_NAMESPACE has value 'AWS/SageMaker': must be" in result.stdout + result.stderr
