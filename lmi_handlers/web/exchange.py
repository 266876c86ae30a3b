"""One HTTP request and its response: the steps that all generating routes share, whatever their dialect."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
from flask import Response, current_app
from werkzeug.datastructures import EnvironHeaders, Headers

from lmi_handlers.apis.base import Dialect, Payload, dialect_name
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.routes import JSON, TEXT
from lmi_handlers.config.not_provided import check_headers
from lmi_handlers.core.custom_attributes import HEADER as CUSTOM_ATTRIBUTES
from lmi_handlers.core.custom_attributes import parse_attributes, render_attributes
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import (
    EngineNotReady,
    InvalidRequest,
    LMIError,
    QueueFull,
)
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.usage import Usage
from lmi_handlers.serving import continuation
from lmi_handlers.serving.explanation import ChosenDialect
from lmi_handlers.serving.parsed import Change, Parsed
from lmi_handlers.serving.served import Served
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.telemetry.phases import server_timing
from lmi_handlers.telemetry.tracing import worker_traces
from lmi_handlers.web.access_control import KEY_LABEL
from lmi_handlers.web.access_log import log_request
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.web.connection import client_connected, current_request, hold_next, limit_writes
from lmi_handlers.web.flask_parts import LeanResponse
from lmi_handlers.web.identity import INFERENCE_ID, check_no_session, identify
from lmi_handlers.web.inner_request import HANDSHAKE
from lmi_handlers.web.receipt import receipt_attributes, tenant_of
from lmi_handlers.web.stream_body import Closing, StreamBody

_FORWARDED_API = "X-Amzn-SageMaker-Forwarded-Api"
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_HEADER_LENGTH = 256
"""Characters of a header that repeats what a client has sent."""

EXPLAIN_PATH = "/explain"

EXPLAINS = "lmi.explains"
"""Key of the WSGI environment of a request that is explained instead of answered; no client can set it. The value maps
the fields by which this route chooses another dialect to that dialect."""


class Exchange:
    """The request that Flask is handling: its id, its `dialect`, the response headers and its log line.

    `http` is Flask's object, and `forwarded_api` the call of SageMaker's API that the client has made, if it says so.
    `counts` is false for a request that the metrics leave out, for example one that generates nothing. `hurries` is false
    for one that SageMaker's time limits do not apply to: then no deadline cuts its answer. `explains` is set
    for one that is only explained. `continuation` is the token for a body without one, known once the body is.
    Without `takes_session`, the request must name none.
    """

    def __init__(self, dialect: Dialect, *, counts: bool = True, takes_session: bool = False) -> None:
        extensions = current_app.extensions
        model: Served = extensions["lmi_model"]
        self.http = current_request()
        headers, environ = self.http.headers, self.http.environ
        self._arrived = time.monotonic()
        self.usage = Usage(started=self._arrived, key_label=environ.get(KEY_LABEL, ""))
        self.explains: Mapping[str, Dialect] | None = environ.get(EXPLAINS)
        self.counts = counts and self.explains is None
        self._takes_session = takes_session
        self.forwarded_api = headers.get(_FORWARDED_API)
        self.hurries = self.forwarded_api != "InvokeEndpointAsync"
        self._request: GenerationRequest | None = None
        self._model = model
        self._arriving: ArrivingBodies = extensions["lmi_bodies"]
        self.environ = environ
        self.connected = partial(client_connected, environ)
        self.limit_writes = partial(limit_writes, environ)
        self.hold_next = partial(hold_next, environ)
        self.headers = dict(dialect.fixed_headers)
        self.dialect = dialect
        self._attributes: dict[str, str] = {}
        self._given_attributes: dict[str, str] = {}
        self.continuation: str | None = None
        self._path = self.http.path if self.explains is None else EXPLAIN_PATH
        self.request_id = request_id(headers)
        self.headers["x-request-id"] = self.request_id
        if headers.get(INFERENCE_ID):
            self.headers[INFERENCE_ID] = self.request_id

    def argument(self, name: str) -> str | None:
        """Return an argument of the request's query, which few requests have."""
        return self.http.args.get(name) if self.http.query_string else None

    def body(self, max_request_size: int) -> bytes:
        """Read the request body. Raises `PayloadTooLarge` if it has more than `max_request_size` bytes.

        Raises `UnsupportedMediaType` if it is compressed, `UnsupportedFeature` if a header asks for a feature that is
        not supported, `InvalidRequest` if the custom attributes are not valid, and `QueueFull` if too many large
        bodies are arriving.
        """
        headers = self.http.headers
        attributes = self._given_attributes = parse_attributes(headers.get(CUSTOM_ATTRIBUTES, ""))
        self.note_tenant(attributes)
        self._attributes = {key: attributes[key] for key in self._model.custom_attributes if key in attributes}
        self.continuation = attributes.get(continuation.ATTRIBUTE)
        self._set_attributes(self._attributes)
        check_headers(headers.get, attributes)
        if not self._takes_session:
            check_no_session(headers)
        return self.any_body(max_request_size)

    def any_body(self, max_request_size: int) -> bytes:
        """Read the request body like `body`, whatever the headers ask for."""
        data = self._arriving.whole(self.http, max_request_size)
        self.usage.started = time.monotonic()  # predict_timeout does not include the upload
        return data

    def note_tenant(self, attributes: Mapping[str, str] | None = None) -> None:
        """Note the tenant that the request names in its custom attributes, which None says to read, or in a header."""
        if not self._model.tenant_attribute:
            return
        if attributes is None:
            with contextlib.suppress(InvalidRequest):  # the model's own code reads them as it likes
                attributes = parse_attributes(self.http.headers.get(CUSTOM_ATTRIBUTES, ""))
        headers = EnvironHeaders(self.environ.get(HANDSHAKE, self.environ))
        self.usage.tenant, self.usage.tenant_digest = tenant_of(
            self._model.tenant_attribute, attributes or {}, headers.get
        )

    def _add_attributes(self, *, complete: bool) -> None:
        """Tell the client how its answer was cut and continues, and, if that is wanted, what it has cost."""
        usage = self.usage
        attributes = {} if usage.truncated is None else {"x-lmi-truncated": usage.truncated}
        attributes |= self._attributes
        if usage.continuation is not None:
            attributes[continuation.ATTRIBUTE] = usage.continuation
        if self._model.receipts:
            attributes |= receipt_attributes(usage, complete=complete)
        self._set_attributes(attributes)

    def _set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Set the custom attributes of the answer, the only headers for clients that SageMaker passes on."""
        if attributes:
            self.headers[CUSTOM_ATTRIBUTES] = render_attributes(attributes)

    def keep_continuation(self, payload: Payload) -> None:
        """Note the token of a body that the model's input formatter replaces: formatters need not know the field."""
        self.continuation = given_continuation(payload) or self.continuation

    def name_ignored(self, names: tuple[str, ...]) -> None:
        """List the ignored body fields in a response header."""
        if names:
            self.headers["x-lmi-ignored-parameters"] = _header_value(", ".join(names[:_HEADER_LENGTH]))

    def generate(self, model: ServedModel, payload: Payload, *changes: Change) -> Response:
        """Generate the answer. The status line is sent with the first output, so an earlier error sets the status.

        The request goes through `changes`, in this order, as soon as its body is known to be valid.
        """
        token, payload = take_continuation(payload)
        parsed = payload.parsed_by(self.dialect)
        for change in changes:
            parsed = change(parsed)
        if (token := token or self.continuation) is not None:
            parsed = msgspec.structs.replace(parsed, continuation=token)
        if model.properties.retry_grace and parsed.request.beam_search is None:
            parsed = self._identified(parsed)
        if self.explains is None:
            self._request = parsed.request
        self.name_ignored(parsed.request.ignored_parameters)
        cutoff = model.cutoff(self.usage.started, stream=parsed.request.stream) if self.hurries else None
        deadline = model.deadline(self.usage.started, self.connected, cutoff)
        if self.explains is not None:
            return self._explain(self.explains, model, payload, parsed, deadline)
        answer = model.start_generation(parsed, self.usage, deadline)
        self.usage.device = model.loaded.capabilities.device
        chunks = iter(answer)
        try:
            if not answer.streams:
                body = b"".join(chunks)
                self.headers.update(self.dialect.answer_headers(parsed.request, self.usage))
                if self.usage.truncated is not None:
                    self.headers["x-lmi-truncated"] = self.usage.truncated
                self._add_attributes(complete=True)
                return self.document(body, answer.content_type)
            first = next(filter(None, chunks), b"")
        except BaseException:
            answer.close()
            raise
        self.headers.update(self.dialect.answer_headers(parsed.request, self.usage))
        self._add_attributes(complete=False)
        stream = StreamBody(self, first, chunks, answer, by_record=payload.stream, telling=answer)
        return self._stream(stream, answer.content_type)

    def _identified(self, parsed: Parsed) -> Parsed:
        """Add the identity of the request, if its client has given it one."""
        identified = identify(parsed.request, self.http.headers, self._given_attributes, self.usage)
        return parsed if identified is parsed.request else msgspec.structs.replace(parsed, request=identified)

    def _explain(
        self,
        claims: Mapping[str, Dialect],
        model: ServedModel,
        payload: Payload,
        parsed: Parsed,
        deadline: Deadline,
    ) -> Response:
        """Answer what would be done with the request."""
        body = None if payload.content_type == TEXT else decode_typed(payload.data, object)
        claimed = (name for name, dialect in claims.items() if dialect is self.dialect and name in payload.fields)
        chosen = ChosenDialect(dialect_name(self.dialect), next(claimed, None) if body is not None else None)
        explanation = model.explain(parsed, body, chosen, self.usage, deadline)
        return self.document(msgspec.json.encode(explanation), JSON)

    def document(self, body: bytes, content_type: str | None, status: int = 200) -> Response:
        """Send a complete body. The client has `predict_timeout` seconds to read it."""
        self.limit_writes(time.monotonic() + self._model.predict_timeout)
        self.hold_next()  # the response head, until the body
        response = self._respond(body, content_type, status)
        self.log(status)
        return response

    def stream(
        self,
        first: bytes,
        rest: Iterator[bytes],
        content_type: str | None,
        answer: Closing | None = None,
        status: int = 200,
    ) -> Response:
        """Send `first` and then `rest`, one chunk per item."""
        return self._stream(StreamBody(self, first, rest, answer, status), content_type, status)

    def _stream(self, body: StreamBody, content_type: str | None, status: int = 200) -> Response:
        self.hold_next()  # the response head, until the first record
        return self._respond(body, content_type, status)

    def _respond(self, body: bytes | StreamBody, content_type: str | None, status: int) -> Response:
        """Return the response, without a `Content-Type` if that is None or empty."""
        streams = isinstance(body, StreamBody)
        self._add_ids()
        if self._model.server_timing and self._request is not None:
            duration = time.monotonic() - self.usage.started
            self.headers["Server-Timing"] = server_timing(self.usage, duration, complete=not streams)
        kind = LeanResponse if streams else Response
        response = kind(body, status, self.headers, content_type=content_type, direct_passthrough=streams)
        if not content_type:
            del response.headers["Content-Type"]
        return response

    def _add_ids(self) -> None:
        """Add the request's id under the names that the dialect's clients look for."""
        self.headers.update(dict.fromkeys(self.dialect.id_headers, self.request_id))

    def refuse(self, error: LMIError) -> Response:
        """Send an error in the dialect's format."""
        rendered = self.dialect.error(error)
        response = Response(rendered.body, status=rendered.status, content_type=rendered.content_type)
        if isinstance(error, QueueFull | EngineNotReady):
            response.headers["Retry-After"] = str(error.retry_after)
        return self.close(response, error)

    def close(self, response: Response, error: LMIError) -> Response:
        """Add the headers to an error response, and log the request."""
        self._add_ids()
        response.headers.extend(self.headers)
        self.log(response.status_code, error)
        return response

    def log(self, status: int, error: LMIError | None = None) -> None:
        if self.counts:
            self._model.metrics.ended(self.usage, error)
        self._model.metrics.responded(status)
        trace_id = None
        if (traces := worker_traces()) is not None:
            trace_id = traces.record(
                self.environ,
                model_name=self._model.name,
                request_id=self.request_id,
                arrived=self._arrived,
                status=status,
                usage=self.usage,
                request=self._request,
                error=error,
            )
        fields = log_request(
            model=self._model.name,
            request_id=self.request_id,
            path=self._path,
            status=status,
            usage=self.usage,
            attributes=self._attributes,
            error=error,
            trace_id=trace_id,
        )
        if self._model.recent is not None:
            self._model.recent.add(fields, self.usage, self._request)


def take_continuation(payload: Payload) -> tuple[str | None, Payload]:
    """Return the continuation token of a JSON body, if it has one, and the body without it: it has one name in all APIs.

    Raises `InvalidBody` if it is not a text.
    """
    name = continuation.FIELD
    if f'"{name}"'.encode() not in payload.data:
        return None, payload  # spares it from decoding the fields
    fields: Mapping[str, msgspec.Raw] = {}
    with contextlib.suppress(InvalidRequest):  # the dialect says what is wrong with the body
        fields = payload.fields
    if name not in fields:
        return None, payload
    data = msgspec.json.encode({key: value for key, value in fields.items() if key != name})
    token = None if bytes(fields[name]) == b"null" else decode_typed(fields[name], str, prefix=name)
    return token, msgspec.structs.replace(payload, data=data)


def given_continuation(payload: Payload) -> str | None:
    """Return the continuation token of a body that the model's input formatter replaces, if it has one."""
    with contextlib.suppress(InvalidRequest):  # a field of the model's own that is no text
        return take_continuation(payload)[0]
    return None


def request_id(headers: Headers) -> str:
    """Return the id that the client has given to the request with these headers, else a new one."""
    given = headers.get(INFERENCE_ID) or headers.get("x-request-id")
    return _header_value(given) if given else str(uuid.uuid4())


def _header_value(text: str) -> str:
    """Shorten to 256 characters and replace all but printable ASCII, because the text came from a client."""
    return _UNPRINTABLE.sub("?", text[:_HEADER_LENGTH])
