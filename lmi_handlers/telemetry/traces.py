"""A trace per request, from what is known at its end. Imports the SDK: only web workers that trace import this module.

Attributes follow the semantic conventions for HTTP and generative AI, and also have vLLM's names.
Sources: https://opentelemetry.io/docs/specs/semconv/, vLLM's vllm/tracing/utils.py
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lmi_handlers.core.custom_attributes import parse_attributes
from lmi_handlers.core.errors import InvalidRequest, LMIError
from lmi_handlers.core.request import ChatPrompt, GenerationRequest
from lmi_handlers.core.request_path import path_text
from lmi_handlers.core.usage import Usage
from lmi_handlers.metrics.requests import failure_cause
from lmi_handlers.telemetry.phases import phases
from lmi_handlers.telemetry.resource import server_resource
from lmi_handlers.telemetry.settings import TelemetrySettings

_ATTRIBUTES_HEADER = "HTTP_X_AMZN_SAGEMAKER_CUSTOM_ATTRIBUTES"
_CONTEXT = ("traceparent", "tracestate")
_CLIENTS_FAULT = ("validation", "template", "dropped")
"""Causes of failures that are not the server's errors."""

_PROPAGATOR = TraceContextTextMapPropagator()


class Traces:
    """The traces of a web worker. Create it in the worker: its exporter runs on a thread.

    Requests never wait for the collector. If it does not keep up, spans are dropped.
    """

    def __init__(self, settings: TelemetrySettings) -> None:
        # Not at exit: that could take 30 seconds.
        self._provider = TracerProvider(resource=server_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(),
                max_queue_size=settings.span_queue,
                schedule_delay_millis=settings.span_delay,
                max_export_batch_size=settings.span_batch,
            )
        )
        self._tracer = self._provider.get_tracer("lmi_handlers")

    def record(
        self,
        environ: Mapping[str, Any],
        *,
        model_name: str,
        request_id: str,
        arrived: float,
        status: int,
        usage: Usage,
        request: GenerationRequest | None,
        error: LMIError | None,
    ) -> str:
        """Record a request that has ended now, and return its trace id in hexadecimal.

        `environ` is the WSGI environment, `arrived` the monotonic time at which the request's head had arrived.
        `request` is None if nothing was to be generated.
        """
        ended, wall = time.monotonic(), time.time_ns()
        path = path_text(environ)[:200]

        def at(monotonic: float) -> int:
            return wall - int((ended - monotonic) * 1e9)

        span = self._tracer.start_span(
            f"{environ['REQUEST_METHOD']} {path}",
            _parent(environ),
            SpanKind.SERVER,
            start_time=at(arrived),
        )
        if span.is_recording():
            attributes = {
                "http.request.method": environ["REQUEST_METHOD"],
                "url.path": path,
                "http.response.status_code": status,
                "gen_ai.response.id": request_id,
                "gen_ai.request.id": request_id,
                **_of_usage(usage),
            }
            if request is not None:
                attributes |= _of_request(request, model_name)
            if error is not None:
                attributes["error.type"] = type(error).__name__
                if failure_cause(error) not in _CLIENTS_FAULT:
                    span.set_status(Status(StatusCode.ERROR))
            span.set_attributes(attributes)
            if request is not None:
                context = set_span_in_context(span)
                for name, begin, end in phases(usage, ended - usage.started, complete=error is None):
                    child = self._tracer.start_span(name, context, start_time=at(usage.started + begin))
                    child.end(at(usage.started + end))
        span.end(wall)
        return format_trace_id(span.get_span_context().trace_id)

    def shutdown(self, timeout: float) -> None:
        """Send what has been recorded, and wait for up to `timeout` seconds until that has happened."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(timeout)


def _of_request(request: GenerationRequest, model_name: str) -> dict[str, Any]:
    params, adapter = request.sampling_params, request.prompts[0].adapter if request.prompts else None
    chat = any(isinstance(prompt.content, ChatPrompt) for prompt in request.prompts)
    operation = "chat" if chat else "text_completion"
    known: dict[str, Any] = {
        "gen_ai.operation.name": operation if request.pooling_params is None else "embeddings",
        "gen_ai.provider.name": "lmi-handlers",
        "gen_ai.request.model": adapter or model_name,
        "gen_ai.response.model": adapter or model_name,
        "gen_ai.request.stream": request.stream,
    }
    if request.pooling_params is None:
        known |= {
            "gen_ai.request.n": params.n,
            "gen_ai.request.choice.count": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k,
            "gen_ai.request.frequency_penalty": params.frequency_penalty,
            "gen_ai.request.presence_penalty": params.presence_penalty,
        }
    return known


def _of_usage(usage: Usage) -> dict[str, Any]:
    first, validation, queue = usage.first_token_time, usage.validation_time, usage.queue_time
    known = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
        "gen_ai.usage.completion_tokens": usage.generated_tokens,
        "gen_ai.usage.num_sequences": usage.sequences,
        "gen_ai.request.max_tokens": usage.max_tokens or None,
        "gen_ai.response.finish_reasons": usage.finish_reasons or None,
        "lmi.joined": usage.joined or None,
        "gen_ai.response.time_to_first_chunk": first,
        "gen_ai.latency.time_to_first_token": first,
        "gen_ai.latency.time_in_queue": queue,
        "gen_ai.latency.e2e": time.monotonic() - usage.started,
    }
    if first is not None and validation is not None and queue is not None:
        known["gen_ai.latency.time_in_model_prefill"] = max(0.0, first - validation - queue)
        if usage.last_token_time is not None:
            known["gen_ai.latency.time_in_model_decode"] = usage.last_token_time - first
    return {name: value for name, value in known.items() if value is not None}


def _parent(environ: Mapping[str, Any]) -> Context:
    """Return the client's trace context.

    SageMaker passes on only its own headers, so `traceparent` may also be one of the custom attributes.
    """
    carrier = {"traceparent": environ.get("HTTP_TRACEPARENT", ""), "tracestate": environ.get("HTTP_TRACESTATE", "")}
    if not carrier["traceparent"] and (custom := environ.get(_ATTRIBUTES_HEADER)):
        with contextlib.suppress(InvalidRequest):  # the client has been told
            carrier = parse_attributes(custom)
    # A context of its own: never that of another request, whose span might be current in this thread.
    return _PROPAGATOR.extract({name: carrier[name] for name in _CONTEXT if carrier.get(name)}, Context())
