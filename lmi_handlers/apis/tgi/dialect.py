"""TGI's dialect: the routes' requests, `{"inputs": "..", "parameters": {..}}`, their answers' headers, and errors.

Source: the text-generation-inference 3.3 router. docs/tgi.md lists where this differs from it, on purpose.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from decimal import Decimal

from formatters.base import Formatter
from formatters.tgi import TgiArrayFormatter, TgiSseFormatter, error_document
from lmi_handlers.apis.base import Dialect, ErrorResponse, Parsed, Payload
from lmi_handlers.apis.tgi.body import (
    TgiBody,
    TgiCompatBody,
    check_body,
    check_length,
    decode_body,
    spelling,
)
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EngineNotReady,
    InvalidJson,
    InvalidRequest,
    LMIError,
    MalformedRequest,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    RequestTimeout,
    UnsupportedMediaType,
)
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.usage import Usage

STATUS: dict[type[LMIError], int] = {
    InvalidJson: 400,
    MalformedRequest: 400,
    RequestTimeout: 408,
    PayloadTooLarge: 413,
    UnsupportedMediaType: 415,
    InvalidRequest: 422,
    ModelNotFound: 404,
    QueueFull: 429,
    ClientDisconnected: 499,  # nobody will see it but the log
    EngineNotReady: 503,
    DeadlineExceeded: 504,
}
"""HTTP status by error, looked up along the class's ancestors; whatever is not here is TGI's 424."""


class TgiDialect(Dialect):
    """What TGI's generating routes have in common; they differ in their defaults and in the answer's frame."""

    def __init__(self, properties: ServingProperties) -> None:
        self._properties = properties
        self._budget = Budget.of(properties)

    @abstractmethod
    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Raises `InvalidRequest`."""

    def error(self, error: LMIError) -> ErrorResponse:
        """`{"error":"<cause>","error_type":"<type>"}`."""
        status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 424)
        return ErrorResponse(status, error_document(error))

    def answer_headers(self, request: GenerationRequest, usage: Usage) -> Mapping[str, str]:
        """The `x-` headers: what was computed, and of a whole answer how long that took."""
        headers = {
            "x-compute-type": self._properties.compute_type or _compute_type(usage.device),
            "x-compute-characters": str(sum(map(len, request.prompts))),
        }
        if request.stream:
            return headers | {"Cache-Control": "no-cache", "x-accel-buffering": "no"}
        total = time.monotonic() - usage.started
        validation, queue = usage.validation_time or 0.0, usage.queue_time or 0.0
        inference = max(total - validation - queue, 0.0)
        times = {
            "total-time": total,
            "validation-time": validation,
            "queue-time": queue,
            "inference-time": inference,
            "time-per-token": inference / max(usage.generated_tokens, 1),
        }
        return (
            headers
            | {"x-compute-time": plain(total)}
            | {f"x-{name}": str(int(seconds * 1000)) for name, seconds in times.items()}
            | {"x-prompt-tokens": str(usage.prompt_tokens), "x-generated-tokens": str(usage.generated_tokens)}
        )

    def _parsed(
        self,
        payload: Payload,
        body: TgiBody,
        ignored: tuple[str, ...],
        formatter: type[Formatter],
        *,
        full_text: bool,
    ) -> Parsed:
        """Check and translate; `full_text` is the route's default for `return_full_text`."""
        stream, parameters = formatter.streams, body.parameters
        adapter = payload.adapter if parameters.adapter_id is None else parameters.adapter_id
        check_body(body, self._properties, stream=stream)
        self._budget.check_fields(parameters, prefix="parameters.")
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=(body.inputs,),
            sampling_params=parameters.sampling_params(stream=stream),
            adapters=() if adapter is None else (adapter,),
            truncate=parameters.truncate,
            stream=stream,
            details=parameters.details or parameters.decoder_input_details,
            decoder_input_details=parameters.decoder_input_details,
            return_full_text=full_text if parameters.return_full_text is None else parameters.return_full_text,
            top_n_tokens=parameters.top_n_tokens or 0,
            ignored_parameters=ignored,
        )
        return Parsed(request, formatter, spelling, check_length)


class GenerateDialect(TgiDialect):
    """`/generate` and `/generate_stream`: the route's formatter says which; the text is what was generated."""

    def __init__(self, properties: ServingProperties, formatter: type[Formatter]) -> None:
        super().__init__(properties)
        self._formatter = formatter

    def parse(self, payload: Payload) -> Parsed:
        """Validate a body."""
        body, ignored = decode_body(payload, TgiBody)
        return self._parsed(payload, body, ignored, self._formatter, full_text=False)


class CompatDialect(TgiDialect):
    """`/`, and `/invocations` with `option.tgi_compat`: the body says whether to stream, and a document comes in an array.

    The text begins with the prompt unless the model is known to be for another task than `text-generation`.
    """

    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Where it does not speak of a stream, SageMaker's streaming API asks for one."""
        body, ignored = decode_body(payload, TgiCompatBody)
        stream = body.stream if isinstance(body.stream, bool) else payload.stream
        formatter = TgiSseFormatter if stream else TgiArrayFormatter
        full_text = self._properties.task in (None, "text-generation")
        return self._parsed(payload, body, ignored, formatter, full_text=full_text)


def _compute_type(device: str) -> str:
    """TGI's word where nobody has given it one, which it has for GPUs only."""
    return f"{'cpu' if device == 'cpu' else 'gpu'}+optimized"


def plain(number: float) -> str:
    """Render a number without an exponent and without needless zeros: 1e-07 is 0.0000001, 1.0 is 1."""
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
