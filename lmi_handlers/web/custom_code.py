"""Answers the invoke routes of a model that is served by its own code.

`invoke_of` and `response_headers` say what the code is told about a request, and what a client is told about an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from flask import Response, request
from werkzeug import Request
from werkzeug.http import parse_options_header

from lmi_handlers.apis.base import Dialect, front_end_json
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ClientDisconnected, LMIError, ModelNotFound
from lmi_handlers.custom_code.client import Invocation
from lmi_handlers.custom_code.messages import Head, Invoke
from lmi_handlers.serving.custom_model import CustomModel
from lmi_handlers.web.access_control import HAS_KEY
from lmi_handlers.web.exchange import Exchange
from lmi_handlers.web.forms import FORM_TYPES, form_parts

_EVENTS = "text/event-stream"
_OURS = ("connection", "content-length", "content-type", "date", "server", "transfer-encoding")
"""Response headers that the server sets itself."""

_KEY_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-amz-security-token")
"""Request headers in which clients send a key, or the rest of an AWS signature that holds one."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_NO_CONTENT = 204


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
            exchange.note_tenant()
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
    `PayloadTooLarge` as `form_parts` does.
    """
    properties = {"x-request-id": request_id} | dict(headers)
    mimetype, options = parse_options_header(properties.pop("Content-Type", ""))
    if mimetype := mimetype.lower():
        properties["Content-Type"] = mimetype
    parts = [(name, value.encode()) for name, value in query]
    parts += form_parts(data, mimetype, options) if mimetype in FORM_TYPES else [("data", data)]
    return Invoke(request_id, properties, parts or [("data", data)])  # only the first call has no content


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
