"""Destinations of telemetry. Read from the environment, like everything that is the same for all models.

OpenTelemetry's variables have their standard meanings, and its SDK reads those that are not read here.
Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from lmi_handlers.config.environment import Variable, declared_variables, invalid, read_values
from lmi_handlers.config.option import InvalidValue
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import install_command

_PROTOCOL = "http/protobuf"
_LIBRARY = "opentelemetry.exporter.otlp.proto.http"
_EXPORTERS = ("otlp", "none")
_TEMPORALITIES = ("cumulative", "delta", "lowmemory")
_HTTP_URL = re.compile(r"https?://[^/\s]+(/\S*)?\Z", re.IGNORECASE)
_NAMESPACE = re.compile(r"[A-Za-z0-9._\-/#]{1,255}")


Period = Annotated[float, msgspec.Meta(gt=0, le=10**8)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


def _namespace(text: str) -> str:
    """Return a namespace of CloudWatch, which keeps names that begin with AWS/ to itself. Raises `InvalidValue`."""
    if not _NAMESPACE.fullmatch(text) or text.startswith("AWS/"):
        raise InvalidValue("must be 1 to 255 letters, digits and . - _ / #, and not begin with AWS/")
    return text


def _temporality(text: str) -> str:
    """Return the name, which may be written in any case. Raises `InvalidValue`."""
    name = text.strip().lower()
    if name not in _TEMPORALITIES:
        raise InvalidValue(f"must be one of {', '.join(_TEMPORALITIES)}")
    return name


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The telemetry to publish. `otlp_interval` and `span_delay` are in milliseconds, `emf_period` in seconds."""

    emf: Annotated[bool, Variable("LMI_EMF", "Write metrics as log lines that CloudWatch reads.")] = False
    emf_period: Annotated[Period, Variable("LMI_EMF_PERIOD", "Seconds between two of these lines.")] = 60.0
    emf_namespace: Annotated[
        str, Variable("LMI_EMF_NAMESPACE", "Namespace of these metrics in CloudWatch.", read=_namespace)
    ] = "LMI"
    endpoint_name: Annotated[
        str,
        Variable(
            "SAGEMAKER_ENDPOINT_NAME",
            "Dimension `Endpoint` of these metrics. SageMaker does not tell a container its endpoint.",
        ),
    ] = ""
    variant_name: Annotated[str, Variable("SAGEMAKER_VARIANT_NAME", "Dimension `Variant` of these metrics.")] = ""
    sdk_disabled: Annotated[bool, Variable("OTEL_SDK_DISABLED", "Export nothing with OpenTelemetry.")] = False
    endpoint: Annotated[
        str,
        Variable(
            "OTEL_EXPORTER_OTLP_ENDPOINT", "URL of a collector for metrics and traces, such as `http://collector:4318`."
        ),
    ] = ""
    metrics_endpoint: Annotated[
        str, Variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "URL of a collector for metrics, with its path.")
    ] = ""
    traces_endpoint: Annotated[
        str, Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "URL of a collector for traces, with its path.")
    ] = ""
    protocol: Annotated[str, Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "Only `http/protobuf` is supported.")] = _PROTOCOL
    metrics_protocol: Annotated[
        str, Variable("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "Only `http/protobuf` is supported.")
    ] = _PROTOCOL
    traces_protocol: Annotated[
        str, Variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "Only `http/protobuf` is supported.")
    ] = _PROTOCOL
    metrics_exporter: Annotated[
        str,
        Variable("OTEL_METRICS_EXPORTER", "`otlp` or `none`. Defaults to `otlp` if there is a collector."),
    ] = ""
    traces_exporter: Annotated[
        str,
        Variable("OTEL_TRACES_EXPORTER", "`otlp` or `none`. Defaults to `otlp` if there is a collector."),
    ] = ""
    otlp_interval: Annotated[
        Period, Variable("OTEL_METRIC_EXPORT_INTERVAL", "Milliseconds between two exports of metrics.")
    ] = 60_000.0
    temporality: Annotated[
        str,
        Variable(
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
            "`cumulative`; or `delta` or `lowmemory`, which export what has grown since the last export.",
            read=_temporality,
        ),
    ] = "cumulative"
    span_queue: Annotated[
        Count, Variable("OTEL_BSP_MAX_QUEUE_SIZE", "Maximum number of spans that wait to be sent.")
    ] = 2048
    # Encoding spans takes the event loop's time: 128 take about 5 ms.
    span_batch: Annotated[Count, Variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "Maximum number of spans per export.")] = (
        128
    )
    span_delay: Annotated[Count, Variable("OTEL_BSP_SCHEDULE_DELAY", "Milliseconds between two exports of spans.")] = (
        5000
    )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> TelemetrySettings:
        """Read the settings. Raises `ConfigError`, also if what they need is not installed."""
        settings = cls(**read_values(cls, environ))
        if any([settings.otlp_metrics, settings.traces]) and not _is_installed():
            raise ConfigError(
                "OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER is set, but OpenTelemetry is not installed: "
                f"{install_command('lmi-handlers[otel]')}, or set OTEL_SDK_DISABLED=true"
            )
        return msgspec.structs.replace(settings, span_batch=min(settings.span_queue, settings.span_batch))

    @property
    def emf_dimensions(self) -> dict[str, str]:
        """CloudWatch's dimensions besides the model's name."""
        named = {"Endpoint": self.endpoint_name, "Variant": self.variant_name}
        return {name: value[:1024] for name, value in named.items() if value}

    @property
    def otlp_period(self) -> float:
        """Seconds between two exports of metrics."""
        return self.otlp_interval / 1000

    @property
    def otlp_metrics(self) -> bool:
        """True if metrics are exported. Raises `ConfigError`."""
        return self._exports("metrics")

    @property
    def traces(self) -> bool:
        """True if traces are exported. Raises `ConfigError`."""
        return self._exports("traces")

    def _exports(self, signal: str) -> bool:
        """Tell whether a signal is exported: it was asked for by name, or there is an endpoint and nothing forbids it."""
        if self.sdk_disabled:
            return False
        exporter: str = getattr(self, f"{signal}_exporter").strip().lower()
        own = f"{signal}_endpoint"
        name = own if getattr(self, own) else "endpoint"
        endpoint: str = getattr(self, name)
        if exporter and exporter not in _EXPORTERS:
            raise _invalid(f"{signal}_exporter", exporter, f"must be one of {', '.join(_EXPORTERS)}")
        if exporter == "none" or not (exporter or endpoint):
            return False
        for field in (f"{signal}_protocol", "protocol"):
            if (protocol := getattr(self, field)) != _PROTOCOL:
                raise _invalid(field, protocol, f"must be {_PROTOCOL}")
        if endpoint and not _HTTP_URL.match(endpoint):
            raise _invalid(name, endpoint, "must be a URL such as http://127.0.0.1:4318")
        return True


def _invalid(field: str, text: str, cause: str) -> ConfigError:
    return invalid(declared_variables(TelemetrySettings)[field].variable.name, text, cause)


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec(_LIBRARY) is not None
    except ModuleNotFoundError:  # one of the packages that it is in
        return False
