"""Answers the invoke routes of a model that is served by its own code.

`invoke_of` and `response_headers` say what the code is told about a request, and what a client is told about an answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Iterator

from flask import Response, request
from werkzeug import Request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.http import parse_options_header

from lmi_handlers.apis.base import Dialect, front_end_json
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ClientDisconnected, LMIError, ModelNotFound, PayloadTooLarge
from lmi_handlers.custom_code.client import Invocation
from lmi_handlers.custom_code.messages import Head, Invoke
from lmi_handlers.serving.custom_model import CustomModel
from lmi_handlers.web.access_control import HAS_KEY
from lmi_handlers.web.exchange import Exchange

_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_EVENTS = "text/event-stream"
_OURS = ("connection", "content-length", "content-type", "date", "server", "transfer-encoding")
"""Response headers that the server sets itself."""

_KEY_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-amz-security-token")
"""Request headers in which clients send a key, or the rest of an AWS signature that holds one."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_NO_CONTENT = 204

_MAX_FIELDS = 1000
"""Fields of a form, which are parsed on the event loop: 30 us each."""
_TOO_MANY_FIELDS = f"a form may have at most {_MAX_FIELDS} fields"


class CustomCodeView:
    """The view of the invoke routes."""

    def __init__(self, model: CustomModel, dialect: Dialect, properties: ServingProperties) -> None:
        self._model = model
        self._dialect = dialect
        self._max_request_size = properties.max_request_size

    def invoke(self, model: str | None = None, version: str | None = None) -> Response:  # noqa: ARG002  only one
        """Answer `POST /invocations`, `/predictions/<model>` or `/models/<model>/invoke`."""
        exchange = Exchange(self._dialect)
        try:
            name = model or request.args.get("model_name")
            if name is not None and name != self._model.name:
                raise ModelNotFound(f"Model or workflow not found: {name[:200]}")
            data = exchange.any_body(self._max_request_size)
            query = request.args.items(multi=True)
            invoke = invoke_of(exchange.request_id, headers_for_code(request), query, data)
            invocation = self._model.invoke(invoke, exchange.usage, exchange.connected)
            try:
                return _respond(exchange, invocation)
            except BaseException:
                invocation.close()
                raise
        except ModelNotFound as error:
            body = front_end_json({"code": 404, "type": "ModelNotFoundException", "message": str(error)})
            return exchange.close(Response(body, 404, content_type="application/json"), error)
        except LMIError as error:
            return exchange.refuse(error)


def _respond(exchange: Exchange, invocation: Invocation) -> Response:
    head = invocation.head
    content_type, headers = response_headers(head)
    exchange.headers.update(headers)
    chunks = iter(invocation)
    if not head.streams:
        body = b"".join(chunks)
        invocation.close()
        return exchange.document(b"" if head.code == _NO_CONTENT else body, content_type, head.code)
    answer = _StreamedAnswer(invocation, chunks, content_type)
    return exchange.stream(next(chunks, b""), answer.rest, content_type, answer, head.code)


class _StreamedAnswer:
    """A stream whose first chunk has been taken. If it fails, a last record says why, as in LMI's streams."""

    def __init__(self, invocation: Invocation, chunks: Iterator[bytes], content_type: str | None) -> None:
        self.deadline = invocation.deadline.time
        self.failure: LMIError | None = ClientDisconnected()
        self.rest = self._run(chunks)
        self._invocation = invocation
        self._is_events = content_type is not None and content_type.startswith(_EVENTS)

    def close(self) -> None:
        """Stop waiting for the rest."""
        self._invocation.close()

    def _run(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from chunks
            self.failure = None
        except LMIError as error:
            self.failure = error.without_frames()
            record = json.dumps({"error": str(error), "code": 424})
            yield (f"data: {record}\n\n" if self._is_events else f"{record}\n").encode()


Pairs = Iterable[tuple[str, str]]


def headers_for_code(asked: Request) -> Pairs:
    """Return the headers that the code may see. If the server has an API key, those that carry keys are not among them."""
    hidden = _KEY_HEADERS if HAS_KEY in asked.environ else ()
    return [(name, value) for name, value in asked.headers.items() if name.lower() not in hidden]


def invoke_of(request_id: str, headers: Pairs, query: Pairs, data: bytes) -> Invoke:
    """Return a request as the code gets it. As in DJL, its content type has no parameters.

    Its content is named as by DJL's front end: query parameters, then the fields of a form, or else "data". Raises
    `PayloadTooLarge` if the form has too many fields.
    """
    properties = {"x-request-id": request_id} | dict(headers)
    mimetype, options = parse_options_header(properties.pop("Content-Type", ""))
    if mimetype := mimetype.lower():
        properties["Content-Type"] = mimetype
    parts = [(name, value.encode()) for name, value in query]
    parts += form_parts(data, mimetype, options) if mimetype in _FORMS else [("data", data)]
    return Invoke(request_id, properties, parts or [("data", data)])  # only the first call has no content


def form_parts(data: bytes, mimetype: str, options: dict[str, str]) -> list[tuple[str, bytes]]:
    """Return the fields and then the files of a form. Raises `PayloadTooLarge` if it has too many."""
    if mimetype == "application/x-www-form-urlencoded" and data.count(b"&") >= _MAX_FIELDS:
        raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values")
    parser = FormDataParser(stream_factory=_in_memory, silent=True, max_form_parts=_MAX_FIELDS)
    try:
        _, fields, files = parser.parse(io.BytesIO(data), mimetype, len(data), options)
    except RequestEntityTooLarge:
        raise PayloadTooLarge(_TOO_MANY_FIELDS, code="too_many_values") from None
    parts = [(name, value.encode()) for name, value in fields.items(multi=True)]
    for name, file in files.items(multi=True):
        with contextlib.closing(file):
            parts.append((name, file.read()))
    return parts


def _in_memory(*_: object, **__: object) -> io.BytesIO:
    """Return what holds a file of a form. Werkzeug's own writes large files to a disk, which may be full or read-only."""
    return io.BytesIO()


def response_headers(head: Head) -> tuple[str | None, dict[str, str]]:
    """Return the content type of an answer, if the code has set one, and the other headers that a client gets."""
    content_type = None
    headers = {}
    for name, value in head.properties.items():
        if name.lower() == "content-type":
            content_type = _UNPRINTABLE.sub("?", value)
        elif name.lower() not in _OURS and _NAME.fullmatch(name):
            headers[name] = _UNPRINTABLE.sub("?", value)
    return content_type, headers
