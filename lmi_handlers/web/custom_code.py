"""Answers the invoke routes of a model that is served by its own code."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

from flask import Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from lmi_handlers.apis.base import Dialect, front_end_json
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ClientDisconnected, LMIError, ModelNotFound, PayloadTooLarge
from lmi_handlers.custom_code.client import Invocation
from lmi_handlers.custom_code.messages import Invoke
from lmi_handlers.serving.custom_model import CustomModel
from lmi_handlers.web.exchange import Exchange

_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_EVENTS = "text/event-stream"
_OURS = ("connection", "content-length", "content-type", "date", "server", "transfer-encoding")
"""Response headers that the server sets itself."""

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
            invoke = Invoke(exchange.request_id, _properties(exchange.request_id), _parts(data))
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
    content_type = None
    for name, value in head.properties.items():
        if name.lower() == "content-type":
            content_type = _UNPRINTABLE.sub("?", value)
        elif name.lower() not in _OURS and _NAME.fullmatch(name):
            exchange.headers[name] = _UNPRINTABLE.sub("?", value)
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
        self.deadline = invocation.deadline
        self.failure: LMIError | None = ClientDisconnected("the client closed the connection")
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


def _properties(request_id: str) -> dict[str, str]:
    """Return the request's headers. As in DJL, its content type has no parameters."""
    headers = {name: value for name, value in request.headers.items() if name != "Content-Type"}
    if request.mimetype:
        headers["Content-Type"] = request.mimetype
    return {"x-request-id": request_id} | headers


def _parts(data: bytes) -> list[tuple[str, bytes]]:
    """Return the content as DJL's front end names it: query parameters, then the fields of a form, or else "data".

    Raises `PayloadTooLarge` if the form has too many fields.
    """
    parts = [(name, value.encode()) for name, value in request.args.items(multi=True)]
    if request.mimetype not in _FORMS:
        return [*parts, ("data", data)]
    if request.mimetype == "application/x-www-form-urlencoded" and data.count(b"&") >= _MAX_FIELDS:
        raise PayloadTooLarge(_TOO_MANY_FIELDS)
    try:
        _, fields, files = FormDataParser(silent=True, max_form_parts=_MAX_FIELDS).parse(
            io.BytesIO(data), request.mimetype, len(data), request.mimetype_params
        )
    except RequestEntityTooLarge:
        raise PayloadTooLarge(_TOO_MANY_FIELDS) from None
    parts += [(name, value.encode()) for name, value in fields.items(multi=True)]
    return parts + [(name, file.read()) for name, file in files.items(multi=True)]
