"""TGI's dialect: requests like `{"inputs": "..", "parameters": {..}}`, response headers and errors.

Source: the text-generation-inference 3.3 router. docs/tgi.md lists the intentional differences.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from decimal import Decimal

from formatters.base import Formatter
from formatters.tgi.errors import error_document
from formatters.tgi.generate import TgiArrayFormatter, TgiSseFormatter
from formatters.tgi.schemas import ErrorResponse
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.tgi.body import (
    TgiBody,
    TgiCompatBody,
    check_body,
    check_length,
    decode_body,
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
    TurnConflict,
    UnsupportedMediaType,
    entry_of,
)
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.usage import Usage
from lmi_handlers.serving.parsed import Parsed

STATUS: dict[type[LMIError], int] = {
    InvalidJson: 400,
    MalformedRequest: 400,
    RequestTimeout: 408,
    PayloadTooLarge: 413,
    UnsupportedMediaType: 415,
    InvalidRequest: 422,
    ModelNotFound: 404,
    TurnConflict: 409,
    QueueFull: 429,
    ClientDisconnected: 499,  # only the log shows it
    EngineNotReady: 503,
    DeadlineExceeded: 504,
}
"""HTTP status by error class or nearest base class. Defaults to 424, as in TGI."""


class TgiDialect(Dialect):
    """Base of the dialects of TGI's generation routes. They differ in defaults and answer format."""

    error_type = ErrorResponse

    def __init__(self, properties: ServingProperties) -> None:
        self._properties = properties
        self._budget = Budget.of(properties)

    @abstractmethod
    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. Raises `InvalidRequest`."""

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":"<cause>","error_type":"<type>"}`."""
        status = entry_of(error, STATUS, 424)
        return Reply(status, error_document(error))

    def answer_headers(self, request: GenerationRequest, usage: Usage) -> Mapping[str, str]:
        """Return TGI's `x-` headers. Timings and token counts are included only if the answer is not streamed."""
        texts = (prompt.content for prompt in request.prompts if isinstance(prompt.content, str))
        headers = {
            "x-compute-type": self._properties.compute_type or _compute_type(usage.device),
            "x-compute-characters": str(sum(map(len, texts))),
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
        """Check and translate a body. `full_text` is the route's default for `return_full_text`."""
        stream, parameters = formatter.streams, body.parameters
        adapter = payload.adapter if parameters.adapter_id is None else parameters.adapter_id
        check_body(body, self._properties, stream=stream)
        self._budget.check_fields(parameters, prefix="parameters.")
        params = parameters.sampling_params(stream=stream)
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=(Prompt(body.inputs, adapter),),
            sampling_params=params,
            has_random_seed=parameters.seed is None and params.seed is not None,
            truncate=parameters.truncate,
            cache_salt=parameters.cache_salt,
            stream=stream,
            details=parameters.details or parameters.decoder_input_details,
            decoder_input_details=parameters.decoder_input_details,
            return_full_text=full_text if parameters.return_full_text is None else parameters.return_full_text,
            top_n_tokens=parameters.top_n_tokens or 0,
            ignored_parameters=ignored,
        )
        return Parsed(request, formatter, parameters.alias, check_length)


class GenerateDialect(TgiDialect):
    """Dialect of `/generate` and `/generate_stream`, which differ in their formatter.

    By default the answer omits the prompt.
    """

    def __init__(self, properties: ServingProperties, formatter: type[Formatter]) -> None:
        super().__init__(properties)
        self._formatter = formatter

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = decode_body(payload, TgiBody)
        return self._parsed(payload, body, ignored, self._formatter, full_text=False)


COMPAT_FORMATTERS: Mapping[str, type[Formatter]] = {"json": TgiArrayFormatter, "sse": TgiSseFormatter}
"""Formatter by its name in `option.output_formatter`."""


class CompatDialect(TgiDialect):
    """Dialect of `/`, and of `/invocations` with `option.tgi_compat`.

    The body says whether to stream. If not, the answer is wrapped in an array. By default the text begins with the
    prompt, unless the model has a known task other than `text-generation`.
    """

    def __init__(self, properties: ServingProperties, formatter: str | None = None) -> None:
        """With `formatter`, a name in `COMPAT_FORMATTERS`, bodies have no choice, as in LMI."""
        super().__init__(properties)
        self._formatter = COMPAT_FORMATTERS.get(formatter or "")

    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. If it does not set `stream`, a call through SageMaker's streaming API does."""
        body, ignored = decode_body(payload, TgiCompatBody)
        stream = body.stream if isinstance(body.stream, bool) else payload.stream
        formatter = self._formatter or (TgiSseFormatter if stream else TgiArrayFormatter)
        full_text = self._properties.task in (None, "text-generation")
        return self._parsed(payload, body, ignored, formatter, full_text=full_text)


def _compute_type(device: str) -> str:
    """Return TGI's default compute type. TGI itself defines one for GPUs only."""
    return f"{'cpu' if device == 'cpu' else 'gpu'}+optimized"


def plain(number: float) -> str:
    """Render a number without an exponent or trailing zeros: 1e-07 becomes 0.0000001, 1.0 becomes 1."""
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
