"""A collector of OpenTelemetry's traces and metrics, as a server of its own: OTLP over HTTP, in protobuf."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(ThreadingHTTPServer):
    """Keeps the bodies that it is sent. While `hangs` is set, it reads requests and does not answer them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[tuple[str, bytes]] = []
        self.hangs = threading.Event()
        self.closed = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.closed.set()
        self.shutdown()
        self.server_close()

    def trace_requests(self) -> Iterator[ExportTraceServiceRequest]:
        for path, body in list(self.bodies):
            if path == "/v1/traces":
                yield ExportTraceServiceRequest.FromString(body)

    def spans(self) -> list[Span]:
        """All spans so far."""
        return [
            span
            for request in self.trace_requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Metric]:
        """The metrics of the latest export, by name. Empty before the first one."""
        body = next((body for path, body in reversed(self.bodies) if path == "/v1/metrics"), b"")
        return {
            metric.name: metric
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def attributes(pairs: Iterator[KeyValue] | list[KeyValue]) -> dict[str, object]:
    """Return attributes as Python values."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind or "string_value")


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.hangs.is_set():
            self.server.closed.wait()
            return
        assert self.headers["Content-Type"] == "application/x-protobuf"
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass
