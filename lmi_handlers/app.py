"""The routes: bytes in, bytes out. The one module, with the blueprints beside it, that knows Flask."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from flask import Flask, Request, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from lmi_handlers.access_log import log_request
from lmi_handlers.connection import client_connected
from lmi_handlers.dialects import invocations_dialect
from lmi_handlers.dialects.base import Dialect, ErrorResponse, Payload
from lmi_handlers.engine.client import EngineState
from lmi_handlers.engine.settings import SOCKET_VARIABLE
from lmi_handlers.errors import (
    ClientDisconnected,
    ConfigError,
    EngineNotReady,
    LMIError,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
)
from lmi_handlers.local_runtime import local_runtime
from lmi_handlers.properties import ServingProperties, load_properties
from lmi_handlers.served_model import Answer, ServedModel, Usage
from lmi_handlers.server_settings import ServerSettings

JSON_LINES = ("application/jsonlines", "application/jsonl", "application/x-jsonlines", "application/x-ndjson")
BATCH_WINDOW = 32
"""Records of one batch body that are in the engine at a time."""

_FIXED_HEADERS = {
    "Pragma": "no-cache",
    "Cache-Control": "no-cache; no-store, must-revalidate, private",
    "Expires": "Thu, 01 Jan 1970 00:00:00 UTC",
}
_INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def create_app() -> Flask:
    """The application, configured by serving.properties and the environment. Raises `ConfigError`.

    The engine is another process, whose socket the environment variable `LMI_ENGINE_SOCKET` names; gunicorn's
    configuration `python:lmi_handlers.gunicorn_conf` starts one and sets it.
    """
    settings = ServerSettings.from_environ(os.environ)
    if SOCKET_VARIABLE not in os.environ:
        raise ConfigError(f"{SOCKET_VARIABLE} is not set: run gunicorn with -c python:lmi_handlers.gunicorn_conf")
    properties = load_properties(settings.model_dir, os.environ).properties
    model = ServedModel(properties.name, Path(os.environ[SOCKET_VARIABLE]), properties.predict_timeout)
    app = Flask(__name__, static_folder=None)
    # One byte more than allowed: Werkzeug cuts a chunked body at its limit without a word.
    app.config["MAX_CONTENT_LENGTH"] = properties.max_request_size + 1
    app.extensions["lmi_model"] = model
    invocations = Invocations(model, invocations_dialect(properties), properties)
    app.add_url_rule("/ping", view_func=partial(ping, model), methods=["GET", "POST"], endpoint="ping")
    for number, rule in enumerate(
        ("/invocations", "/predictions/<model>", "/predictions/<model>/<version>", "/models/<model>/invoke")
    ):
        app.add_url_rule(rule, view_func=invocations.invoke, methods=["POST"], endpoint=f"invoke-{number}")
    app.register_error_handler(HTTPException, http_error)
    if settings.local_runtime:
        app.register_blueprint(local_runtime(split_payload_parts=settings.split_payload_parts))
    model.start()
    return app


def ping(model: ServedModel) -> Response:
    """Health as SageMaker asks for it: 200 once requests are taken, until then 503 with the phase in the body."""
    if model.state is EngineState.READY:
        return _json(200, {model.name: {"status": "Healthy"}})
    return _json(503, {model.name: {"status": model.state.value.capitalize(), "phase": model.phase}})


def http_error(error: HTTPException) -> Response:
    """What the router refuses, in the shape of DJL's front end."""
    status = error.code or 500
    kinds = {404: "ResourceNotFoundException", 405: "MethodNotAllowedException"}
    response = _json(
        status, {"code": status, "type": kinds.get(status, type(error).__name__), "message": str(error.description)}
    )
    if status == 405:
        response.headers["Allow"] = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
    return response


class Invocations:
    """The invoke routes: one dialect, one model."""

    def __init__(self, model: ServedModel, dialect: Dialect, properties: ServingProperties) -> None:
        self._model = model
        self._dialect = dialect
        self._default_accept = properties.default_accept or ""
        self._max_request_size = properties.max_request_size

    def invoke(self, model: str | None = None, version: str | None = None) -> Response:  # noqa: ARG002  one version
        """`POST /invocations`, `/predictions/<model>`, `/models/<model>/invoke`."""
        exchange = Exchange(request, request.environ)
        try:
            self._check_model(model or request.args.get("model_name"))
            payload = self._payload(exchange)
            if payload.content_type in JSON_LINES:
                records = [line for line in payload.data.splitlines() if line.strip()]
                if len(records) > 1:
                    return self._batch(exchange, payload, records)
            return self._respond(exchange, payload)
        except ModelNotFound as error:
            response = _json(404, {"code": 404, "type": "ModelNotFoundException", "message": str(error)})
            return exchange.refuse(response, error)
        except LMIError as error:
            return exchange.refuse(_error_response(self._dialect.error(error), error), error)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model.name:
            raise ModelNotFound(f"Model or workflow not found: {name[:200]}")

    def _payload(self, exchange: Exchange) -> Payload:
        return Payload(
            data=self._body(),
            request_id=exchange.request_id,
            content_type=request.mimetype,
            accept=request.headers.get("Accept", self._default_accept).replace("*/*", self._default_accept),
            stream=request.headers.get("X-Amzn-SageMaker-Forwarded-Api") == "InvokeEndpointWithResponseStream",
        )

    def _body(self) -> bytes:
        try:
            data = request.get_data(cache=False)
        except RequestEntityTooLarge:
            data = None
        if data is None or len(data) > self._max_request_size:
            raise PayloadTooLarge(f"the request body is larger than max_request_size ({self._max_request_size} bytes)")
        return data

    def _respond(self, exchange: Exchange, payload: Payload) -> Response:
        parsed = self._dialect.parse(payload)
        if parsed.request.ignored_parameters:
            exchange.headers["x-lmi-ignored-parameters"] = _header_value(", ".join(parsed.request.ignored_parameters))
        answer = self._model.start_generation(parsed, exchange.usage, exchange.connected)
        return exchange.answer(answer)

    def _batch(self, exchange: Exchange, payload: Payload, records: list[bytes]) -> Response:
        """Answer each record on a line of its own, in order, errors in their record's place: what batch transform needs."""
        lines = self._lines(exchange, [msgspec.structs.replace(payload, data=record) for record in records])
        first = next(lines)
        return exchange.stream(first, lines, JSON_LINES[0])

    def _lines(self, exchange: Exchange, payloads: list[Payload]) -> Iterator[bytes]:
        begun: deque[tuple[Payload, Answer | ErrorResponse]] = deque()
        try:
            for position, payload in enumerate(payloads):
                if len(begun) == BATCH_WINDOW:
                    yield self._line(exchange, *begun.popleft())
                payload = msgspec.structs.replace(payload, request_id=f"{payload.request_id}-{position}")
                begun.append((payload, self._begin(exchange, payload)))
            while begun:
                yield self._line(exchange, *begun.popleft())
        finally:
            for _, answer in begun:
                if isinstance(answer, Answer):
                    answer.close()

    def _begin(self, exchange: Exchange, payload: Payload) -> Answer | ErrorResponse:
        usage = Usage(started=time.monotonic())
        try:
            return self._model.start_generation(self._dialect.parse(payload), usage, exchange.connected)
        except LMIError as error:
            return self._dialect.error(error)

    def _line(self, exchange: Exchange, payload: Payload, answer: Answer | ErrorResponse) -> bytes:
        while isinstance(answer, Answer):
            try:
                body = b"".join(answer)
                exchange.usage.generated_tokens += answer.usage.generated_tokens
                exchange.usage.prompt_tokens += answer.usage.prompt_tokens
                break
            except QueueFull as error:
                time.sleep(error.retry_after)  # a batch has time; its other records make room
                answer = self._begin(exchange, payload)
            except ClientDisconnected:
                raise
            except LMIError as error:
                answer = self._dialect.error(error)
        else:
            body = answer.body
        return msgspec.json.format(body, indent=0) + b"\n" if b"\n" in body.strip() else body.strip() + b"\n"


class Exchange:
    """One HTTP request on its way to its response: its id, the headers to send, and the line to log at the end."""

    def __init__(self, http_request: Request, environ: Mapping[str, Any]) -> None:
        self.usage = Usage(started=time.monotonic())
        self.connected = partial(client_connected, environ)
        self.headers = dict(_FIXED_HEADERS)
        self._path = http_request.path
        inference_id = http_request.headers.get(_INFERENCE_ID)
        given = inference_id or http_request.headers.get("x-request-id")
        self.request_id = _header_value(given) if given else str(uuid.uuid4())
        self.headers["x-request-id"] = self.request_id
        if inference_id:
            self.headers[_INFERENCE_ID] = self.request_id

    def answer(self, answer: Answer) -> Response:
        """Send an answer: the head only once there is something to send, so that failures before it have their status."""
        chunks = iter(answer)
        try:
            if not answer.streams:
                body = b"".join(chunks)
                response = Response(body, headers=self.headers, content_type=answer.content_type)
                self.log(200)
                return response
            first = next(chunks, b"")
        except BaseException:
            answer.close()
            raise
        return self.stream(first, chunks, answer.content_type, answer)

    def stream(self, first: bytes, rest: Iterator[bytes], content_type: str, answer: Answer | None = None) -> Response:
        """Send `first` and then `rest`, a chunk for each of its items."""
        body = StreamBody(self, first, rest, answer)
        return Response(body, headers=self.headers, content_type=content_type, direct_passthrough=True)

    def refuse(self, response: Response, error: LMIError) -> Response:
        """Complete an error response."""
        response.headers.extend(self.headers)
        self.log(response.status_code, error)
        return response

    def log(self, status: int, error: LMIError | None = None) -> None:
        """Write the request's line."""
        cause = None if error is None else f"{type(error).__name__}: {error}"
        log_request(request_id=self.request_id, path=self._path, status=status, usage=self.usage, error=cause)


class StreamBody:
    """A response body that aborts its generation, and logs, when the server closes it: at its end or when the client has left."""

    def __init__(self, exchange: Exchange, first: bytes, rest: Iterator[bytes], answer: Answer | None) -> None:
        self._exchange = exchange
        self._first = first
        self._rest = rest
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        with contextlib.suppress(ClientDisconnected):  # of a batch; nobody is left to tell
            yield from self._rest

    def close(self) -> None:
        """Called by the WSGI server exactly once."""
        failure = None
        if self._answer is not None:
            self._answer.close()
            failure = self._answer.failure
        elif hasattr(self._rest, "close"):
            self._rest.close()
        self._exchange.log(200, failure)


def _error_response(error: ErrorResponse, cause: LMIError) -> Response:
    response = Response(error.body, status=error.status, content_type=error.content_type)
    if isinstance(cause, QueueFull | EngineNotReady):
        response.headers["Retry-After"] = str(cause.retry_after)
    return response


def _json(status: int, value: object) -> Response:
    """A document of the front end's own: indented, with a newline, as DJL writes them."""
    body = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    return Response(body, status=status, content_type="application/json")


def _header_value(text: str) -> str:
    """Printable ASCII only, and short: the text came from a client."""
    return _UNPRINTABLE.sub("?", text)[:256]
