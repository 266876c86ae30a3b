"""LMI's rolling-batch dialect: `{"inputs": "..", "parameters": {..}, "stream": false}`.

Source: the LMI input/output schema document. There are two differences, both in the client's favour. `inputs` may be a
list, and is answered in order. Errors start with the cause and name the field; DJL has one fixed sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from formatters import FORMATTERS, available_formatters, load_formatter_class
from formatters.base import Formatter, encode
from formatters.lmi.schemas import LmiError
from lmi_handlers.apis.base import Dialect, Payload, Reply, first_named
from lmi_handlers.apis.lmi.body import LmiBody, parse_body
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import (
    ClientDisconnected,
    ConfigError,
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    MalformedRequest,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    RequestTimeout,
    TurnConflict,
    entry_of,
)
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.serving.parsed import Parsed

STATUS: dict[type[LMIError], int] = {
    MalformedRequest: 400,
    RequestTimeout: 408,
    PayloadTooLarge: 413,
    ModelNotFound: 404,
    TurnConflict: 409,
    QueueFull: 503,
    DeadlineExceeded: 504,
    ClientDisconnected: 499,  # only the log shows it
    EngineNotReady: 503,
    EngineDead: 500,
}
"""HTTP status by error class or nearest base class. Defaults to 424, as in LMI."""

FIXED_HEADERS = {
    "Pragma": "no-cache",
    "Cache-Control": "no-cache; no-store, must-revalidate, private",
    "Expires": "Thu, 01 Jan 1970 00:00:00 UTC",
}
"""Headers that DJL's front end sends with every response."""

REQUEST_FORMATTERS = ("json", "jsonlines", "sse")
"""Allowed values of `parameters.output_formatter` in a request."""

_STREAMS = {"application/jsonlines": "jsonlines", "text/event-stream": "sse"}
"""Content type that `Accept` may ask for in a stream -> formatter."""

logger = logging.getLogger(__name__)


def status_of(error: LMIError) -> int:
    """Return LMI's HTTP status for an error."""
    return entry_of(error, STATUS, 424)


class LmiDialect(Dialect):
    """The schema that LMI documents for continuous batching."""

    error_type = LmiError
    fixed_headers = FIXED_HEADERS

    def __init__(self, properties: ServingProperties, sampled_defaults: Mapping[str, float]) -> None:
        """`sampled_defaults` are LMI's for the backend. Raises `ConfigError` if `option.output_formatter` is wrong."""
        self._sampled_defaults = sampled_defaults
        self._formatter = properties.output_formatter
        self._budget = Budget.of(properties)
        self._logged: set[str] = set()
        names = [*REQUEST_FORMATTERS]
        if self._formatter is not None and self._formatter not in names:
            others = available_formatters().keys() - FORMATTERS.keys()  # the rest of ours belong to other APIs
            if self._formatter not in others:
                known = ", ".join(sorted({*REQUEST_FORMATTERS, *others}))
                raise ConfigError(f"option.output_formatter has value {self._formatter!r}: must be one of {known}")
            names.append(self._formatter)
        self._formatters = {name: load_formatter_class(name) for name in names}

    def parse(self, payload: Payload) -> Parsed:
        body = parse_body(payload, self._budget)
        stream = payload.stream if body.stream is None else body.stream
        formatter, unknown = self._choose(body.parameters.output_formatter, payload.accept, stream=stream)
        if formatter.streams and len(body.prompts) > 1:
            raise InvalidRequest("a list of prompts cannot be streamed; send them one by one", field="inputs")
        ignored = body.ignored + unknown
        self._log_ignored(ignored)
        request = self._request(payload, body, ignored, formatter)
        return Parsed(request, formatter, body.parameters.alias)

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":"<cause>","code":424}`, compact like DJL's front end."""
        status = status_of(error)
        return Reply(status, encode(LmiError(str(error), status)))

    def _choose(self, requested: str | None, accept: str, *, stream: bool) -> tuple[type[Formatter], tuple[str, ...]]:
        """Choose the formatter: the request's own takes precedence, then the option's, then the default for `stream`.

        Also returns the ignored parameter, if the request names an unknown formatter.
        """
        if requested in self._formatters:
            return self._formatters[requested], ()
        if self._formatter is not None:
            name = self._formatter
        elif not stream:
            name = "json"
        else:
            content_type = first_named(accept, _STREAMS)
            name = "jsonlines" if content_type is None else _STREAMS[content_type]
        return self._formatters[name], () if requested is None else ("output_formatter",)

    def _request(
        self, payload: Payload, body: LmiBody, ignored: tuple[str, ...], formatter: type[Formatter]
    ) -> GenerationRequest:
        parameters = body.parameters
        beam_search = parameters.beam_search_params()
        details = bool(parameters.details)
        needs_logprobs = formatter.streams or details or parameters.sequences > 1
        return GenerationRequest(
            request_id=payload.request_id,
            prompts=body.prompts,
            sampling_params=parameters.sampling_params(
                stream=formatter.streams, needs_logprobs=needs_logprobs, sampled_defaults=self._sampled_defaults
            ),
            priority=parameters.priority or 0,
            cache_salt=parameters.cache_salt,
            beam_search=beam_search,
            truncate=parameters.truncate_to,
            stream=formatter.streams,
            details=details,
            decoder_input_details=bool(parameters.decoder_input_details),
            return_full_text=bool(parameters.return_full_text),
            top_n_tokens=parameters.top_tokens,
            ignored_parameters=ignored,
        )

    def _log_ignored(self, ignored: tuple[str, ...]) -> None:
        for given in ignored[:_LOGGED_AT_ONCE]:
            name = given[:_LOGGED_CHARACTERS]
            if name not in self._logged and len(self._logged) < 1000:  # bounded, because clients choose the names
                self._logged.add(name)
                logger.warning("unknown parameter ignored", extra={"parameter": name})


_LOGGED_AT_ONCE = 100  # names per request
_LOGGED_CHARACTERS = 100  # of a name; they are kept as long as the server runs
