"""What is published, and where. Read from the environment, like everything that is the same for all models.

OpenTelemetry's variables have their standard meanings, and its SDK reads those that are not read here.
Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping

import msgspec

from lmi_handlers.config.environment import integer, seconds, switch
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import install_command
from lmi_handlers.core.redaction import redacted

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "http/protobuf"
_MOST = 10**9
_LIBRARY = "opentelemetry.exporter.otlp.proto.http"
_EXPORTERS = ("otlp", "none")
_HTTP_URL = re.compile(r"https?://[^/\s]+(/\S*)?\Z", re.IGNORECASE)
_NAMESPACE = re.compile(r"[A-Za-z0-9._\-/#]{1,255}")
_DIMENSIONS = {"Endpoint": "SAGEMAKER_ENDPOINT_NAME", "Variant": "SAGEMAKER_VARIANT_NAME"}
"""CloudWatch dimensions, by the variables that operators set: SageMaker does not tell a container its endpoint."""


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is published. Periods are in seconds. `emf_dimensions` are those besides the model's name.

    Spans are sent in batches of up to `span_batch`, every `span_delay` milliseconds, while up to `span_queue` wait.
    """

    emf: bool = False
    emf_period: float = 60.0
    emf_namespace: str = "LMI"
    emf_dimensions: dict[str, str] = {}
    otlp_metrics: bool = False
    otlp_period: float = 60.0
    traces: bool = False
    span_queue: int = 2048
    span_batch: int = 128
    """Encoding them takes the event loop's time: 128 take about 5 ms."""
    span_delay: int = 5000

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> TelemetrySettings:
        """Read the settings. Raises `ConfigError`, also if what they need is not installed."""
        defaults = cls()  # of a Struct, the class itself has no defaults
        span_queue = _whole(environ, "OTEL_BSP_MAX_QUEUE_SIZE", defaults.span_queue)
        settings = cls(
            emf=switch(environ, "LMI_EMF"),
            emf_period=seconds(environ, "LMI_EMF_PERIOD", defaults.emf_period),
            emf_namespace=environ.get("LMI_EMF_NAMESPACE") or defaults.emf_namespace,
            emf_dimensions={name: environ[key][:1024] for name, key in _DIMENSIONS.items() if environ.get(key)},
            otlp_metrics=_exports(environ, "METRICS"),
            otlp_period=seconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", 1000 * defaults.otlp_period) / 1000,
            traces=_exports(environ, "TRACES"),
            span_queue=span_queue,
            span_batch=min(span_queue, _whole(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", defaults.span_batch)),
            span_delay=_whole(environ, "OTEL_BSP_SCHEDULE_DELAY", defaults.span_delay),
        )
        # CloudWatch keeps names that begin with AWS/ to itself.
        if not _NAMESPACE.fullmatch(settings.emf_namespace) or settings.emf_namespace.startswith("AWS/"):
            raise ConfigError(
                "LMI_EMF_NAMESPACE must be 1 to 255 letters, digits and . - _ / #, and not begin with AWS/, "
                f"got {settings.emf_namespace[:300]!r}"
            )
        if (settings.otlp_metrics or settings.traces) and not _is_installed():
            raise ConfigError(
                f"{_ENDPOINT} or OTEL_TRACES_EXPORTER is set, but OpenTelemetry is not installed: "
                f"{install_command('lmi-handlers[otel]')}, or set OTEL_SDK_DISABLED=true"
            )
        return settings


def _exports(environ: Mapping[str, str], signal: str) -> bool:
    """Tell whether a signal is exported: it was asked for by name, or there is an endpoint and nothing forbids it."""
    if switch(environ, "OTEL_SDK_DISABLED"):
        return False
    exporter = environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower()
    name = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
    name = name if environ.get(name) else _ENDPOINT
    endpoint = environ.get(name)
    if exporter and exporter not in _EXPORTERS:
        raise ConfigError(f"OTEL_{signal}_EXPORTER must be one of {', '.join(_EXPORTERS)}, got {exporter[:100]!r}")
    if exporter == "none" or not (exporter or endpoint):
        return False
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environ.get(variable) or _PROTOCOL
        if protocol != _PROTOCOL:
            raise ConfigError(f"{variable} must be {_PROTOCOL}, got {protocol[:100]!r}")
    if endpoint and not _HTTP_URL.match(endpoint):
        raise ConfigError(f"{name} must be a URL such as http://127.0.0.1:4318, got {redacted(endpoint)[:100]!r}")
    return True


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec(_LIBRARY) is not None
    except ModuleNotFoundError:  # one of the packages that it is in
        return False


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    return integer(name, environ.get(name, "").strip() or str(default), _MOST)
