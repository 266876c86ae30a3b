"""The routes: bytes in, bytes out. The one module, with the blueprints beside it, that knows Flask."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from backends.features import sampled_defaults
from lmi_handlers.access_control import AccessControl
from lmi_handlers.answer import Answer
from lmi_handlers.dialects import InvocationsDialects
from lmi_handlers.dialects.base import Payload
from lmi_handlers.engine.client import EngineState
from lmi_handlers.engine.settings import SOCKET_VARIABLE
from lmi_handlers.errors import (
    ClientDisconnected,
    ConfigError,
    InvalidRequest,
    LMIError,
    ModelNotFound,
    QueueFull,
)
from lmi_handlers.front_end_errors import front_end_error
from lmi_handlers.http_exchange import Exchange
from lmi_handlers.local_runtime import local_runtime
from lmi_handlers.metrics.requests import CONTENT_TYPE
from lmi_handlers.openai_routes import OpenAIRoutes
from lmi_handlers.openapi.document import openapi_document
from lmi_handlers.properties import ServingProperties
from lmi_handlers.served_model import ServedModel
from lmi_handlers.server_settings import default_workers, is_loopback
from lmi_handlers.start_up import read_configuration
from lmi_handlers.tgi_routes import TgiRoutes
from lmi_handlers.usage import Usage

JSON_LINES = ("application/jsonlines", "application/jsonl", "application/x-jsonlines", "application/x-ndjson")
BATCH_WINDOW = 32
"""Records of one batch body that are in the engine at a time."""


def create_app() -> Flask:
    """The application, configured by serving.properties and the environment. Raises `ConfigError`.

    The engine is another process, whose socket the environment variable `LMI_ENGINE_SOCKET` names; gunicorn's
    configuration `python:lmi_handlers.gunicorn_conf` starts one and sets it.
    """
    configuration = read_configuration(os.environ)
    settings, properties = configuration.settings, configuration.properties
    if SOCKET_VARIABLE not in os.environ:
        raise ConfigError(f"{SOCKET_VARIABLE} is not set: run gunicorn with -c python:lmi_handlers.gunicorn_conf")
    model = ServedModel(properties, Path(os.environ[SOCKET_VARIABLE]))
    app = Flask(__name__, static_folder=None)
    # One byte more than allowed: Werkzeug cuts a chunked body at its limit without a word.
    app.config["MAX_CONTENT_LENGTH"] = properties.max_request_size + 1
    app.extensions["lmi_model"] = model
    defaults = sampled_defaults(configuration.selection.name)
    dialects = InvocationsDialects(properties, lambda: model.facts, defaults)
    invocations = Invocations(model, dialects, properties)
    app.add_url_rule("/ping", view_func=partial(ping, model), methods=["GET", "POST"], endpoint="ping")
    for number, rule in enumerate(
        ("/invocations", "/predictions/<model>", "/predictions/<model>/<version>", "/models/<model>/invoke")
    ):
        app.add_url_rule(rule, view_func=invocations.invoke, methods=["POST"], endpoint=f"invoke-{number}")
    app.add_url_rule("/metrics", view_func=partial(metrics, model), endpoint="metrics")
    api_key = os.environ.get("API_KEY")  # a secret is read where it is used and goes through no record of settings
    document = cache(partial(openapi_document, properties, has_api_key=bool(api_key)))
    for rule in ("/openapi.json", "/api-doc/openapi.json"):
        app.add_url_rule(rule, view_func=partial(openapi, document), endpoint=rule)
    workers = settings.workers or properties.web_workers or default_workers()
    app.register_blueprint(TgiRoutes(model, properties, workers).blueprint())
    app.register_blueprint(OpenAIRoutes(model, properties).blueprint())
    app.register_error_handler(HTTPException, front_end_error)
    loopback_only = is_loopback(settings.host)
    AccessControl(properties.cors_allowed_origin, api_key, loopback_only=loopback_only).install(app)
    if settings.local_runtime:
        app.register_blueprint(local_runtime(split_payload_parts=settings.split_payload_parts))
    model.start()
    return app


def ping(model: ServedModel) -> Response:
    """Health as SageMaker asks for it: 200 once requests are taken, until then 503 with the phase in the body."""
    if model.state is EngineState.READY:
        return _json(200, {model.name: {"status": "Healthy"}})
    return _json(503, {model.name: {"status": model.state.value.capitalize(), "phase": model.phase}})


def metrics(model: ServedModel) -> Response:
    """What this server has done and does, of all of its processes, as Prometheus reads it."""
    return Response(model.metrics.page(), content_type=CONTENT_TYPE)


def openapi(document: Callable[[], bytes]) -> Response:
    """What the routes take and answer, as OpenAPI has it."""
    return Response(document(), content_type="application/json")


class Invocations:
    """The invoke routes: one model, and the dialect that the body is in."""

    def __init__(self, model: ServedModel, dialects: InvocationsDialects, properties: ServingProperties) -> None:
        self._model = model
        self._dialects = dialects
        self._default_accept = properties.default_accept or ""
        self._max_request_size = properties.max_request_size

    def invoke(self, model: str | None = None, version: str | None = None) -> Response:  # noqa: ARG002  one version
        """`POST /invocations`, `/predictions/<model>`, `/models/<model>/invoke`."""
        exchange = Exchange(self._dialects.native)
        try:
            self._check_model(model or request.args.get("model_name"))
            payload = self._payload(exchange)
            if payload.content_type in JSON_LINES:
                records = [line for line in payload.data.splitlines() if line.strip()]
                if len(records) > 1:
                    return self._batch(exchange, payload, records)
            exchange.dialect = self._dialects.of(payload)
            return exchange.generate(self._model, payload)
        except ModelNotFound as error:
            response = _json(404, {"code": 404, "type": "ModelNotFoundException", "message": str(error)})
            return exchange.close(response, error)
        except LMIError as error:
            return exchange.refuse(error)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model.name:
            raise ModelNotFound(f"Model or workflow not found: {name[:200]}")

    def _payload(self, exchange: Exchange) -> Payload:
        return Payload(
            data=exchange.body(self._max_request_size),
            request_id=exchange.request_id,
            content_type=request.mimetype,
            accept=request.headers.get("Accept", self._default_accept).replace("*/*", self._default_accept),
            stream=request.headers.get("X-Amzn-SageMaker-Forwarded-Api") == "InvokeEndpointWithResponseStream",
            # "" is the model itself, as it is in a body.
            adapter=request.headers.get("X-Amzn-SageMaker-Adapter-Identifier") or request.args.get("adapter") or None,
        )

    def _batch(self, exchange: Exchange, payload: Payload, records: list[bytes]) -> Response:
        """Answer each record on a line of its own, in order, errors in their record's place: what batch transform needs."""
        exchange.counts = False  # its records do
        lines = self._lines(
            exchange, [msgspec.structs.replace(payload, data=record, stream=False) for record in records]
        )
        first = next(lines)
        return exchange.stream(first, lines, JSON_LINES[0])

    def _lines(self, exchange: Exchange, payloads: list[Payload]) -> Iterator[bytes]:
        begun: deque[tuple[Payload, Usage, Answer | LMIError]] = deque()
        try:
            for position, payload in enumerate(payloads):
                if len(begun) == BATCH_WINDOW:
                    yield self._line(exchange, *begun.popleft())
                payload = msgspec.structs.replace(payload, request_id=f"{payload.request_id}-{position}")
                usage = Usage(started=time.monotonic())
                begun.append((payload, usage, self._begin(exchange, payload, usage)))
            while begun:
                yield self._line(exchange, *begun.popleft())
        finally:
            for _, usage, answer in begun:
                if isinstance(answer, Answer):
                    answer.close()
                    answer = ClientDisconnected("the client closed the connection")
                self._model.metrics.ended(usage, answer)

    def _begin(self, exchange: Exchange, payload: Payload, usage: Usage) -> Answer | LMIError:
        try:
            parsed = self._dialects.of(payload).parse(payload)
            if parsed.request.stream:
                raise InvalidRequest(
                    "a record of a batch is answered on one line and cannot be streamed", field="stream"
                )
            return self._model.start_generation(parsed, usage, exchange.connected)
        except LMIError as error:
            return error

    def _line(self, exchange: Exchange, payload: Payload, usage: Usage, answer: Answer | LMIError) -> bytes:
        while isinstance(answer, Answer):
            try:
                body, failure = b"".join(answer), answer.failure
                exchange.usage.generated_tokens += usage.generated_tokens
                exchange.usage.prompt_tokens += usage.prompt_tokens
                break
            except QueueFull as error:
                time.sleep(error.retry_after)  # a batch has time; its other records make room
                answer = self._begin(exchange, payload, usage)
            except LMIError as error:
                answer = error
        else:
            body, failure = self._dialects.of(payload).error(answer).body, answer
        self._model.metrics.ended(usage, failure)
        if isinstance(failure, ClientDisconnected):
            raise failure
        return msgspec.json.format(body, indent=0) + b"\n" if b"\n" in body.strip() else body.strip() + b"\n"


def _json(status: int, value: object) -> Response:
    """A document of the front end's own: indented, with a newline, as DJL writes them."""
    body = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    return Response(body, status=status, content_type="application/json")
