"""The Flask application and its invoke routes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from backends.features import sampled_defaults
from lmi_handlers.apis import InvocationsDialects
from lmi_handlers.apis.base import Payload
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.server_settings import default_workers, is_loopback
from lmi_handlers.core.errors import (
    ConfigError,
    LMIError,
    ModelNotFound,
)
from lmi_handlers.engine.client import EngineState
from lmi_handlers.engine.settings import SOCKET_VARIABLE
from lmi_handlers.metrics.requests import CONTENT_TYPE
from lmi_handlers.openapi.document import openapi_document
from lmi_handlers.sagemaker_runtime.routes import local_runtime
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.start_up import read_configuration
from lmi_handlers.web.access_control import AccessControl
from lmi_handlers.web.batch_bodies import CONTENT_TYPES, BatchBodies, is_batch
from lmi_handlers.web.exchange import ArrivingBodies, Exchange
from lmi_handlers.web.front_end_errors import front_end_error
from lmi_handlers.web.openai_routes import OpenAIRoutes
from lmi_handlers.web.tgi_routes import TgiRoutes


def create_app() -> Flask:
    """Create the application from serving.properties and the environment. Raises `ConfigError`.

    The engine runs in another process. The environment variable `LMI_ENGINE_SOCKET` names its socket; gunicorn's
    configuration `python:lmi_handlers.gunicorn_conf` starts an engine and sets the variable.
    """
    configuration = read_configuration(os.environ)
    settings, properties = configuration.settings, configuration.properties
    if SOCKET_VARIABLE not in os.environ:
        raise ConfigError(f"{SOCKET_VARIABLE} is not set: run gunicorn with -c python:lmi_handlers.gunicorn_conf")
    model = ServedModel(properties, Path(os.environ[SOCKET_VARIABLE]))
    app = Flask(__name__, static_folder=None)
    # One byte more than allowed, because Werkzeug silently truncates a chunked body at its limit.
    app.config["MAX_CONTENT_LENGTH"] = properties.max_request_size + 1
    app.extensions["lmi_model"] = model
    app.extensions["lmi_bodies"] = ArrivingBodies.of(properties.max_request_size)
    defaults = sampled_defaults(configuration.selection.name)
    dialects = InvocationsDialects(properties, lambda: model.facts, defaults)
    invocations = Invocations(model, dialects, properties)
    app.add_url_rule("/ping", view_func=partial(ping, model), methods=["GET", "POST"], endpoint="ping")
    for number, rule in enumerate(
        ("/invocations", "/predictions/<model>", "/predictions/<model>/<version>", "/models/<model>/invoke")
    ):
        app.add_url_rule(rule, view_func=invocations.invoke, methods=["POST"], endpoint=f"invoke-{number}")
    app.add_url_rule("/metrics", view_func=partial(metrics, model), endpoint="metrics")
    api_key = os.environ.get("API_KEY")  # a secret: read only here and kept out of the settings
    access = AccessControl(properties.cors_allowed_origin, api_key, loopback_only=is_loopback(settings.host))
    document = cache(partial(openapi_document, properties, has_api_key=bool(api_key), checks_names=access.checks_names))
    for rule in ("/openapi.json", "/api-doc/openapi.json"):
        app.add_url_rule(rule, view_func=partial(openapi, document), endpoint=rule)
    workers = settings.workers or properties.web_workers or default_workers()
    app.register_blueprint(TgiRoutes(model, properties, workers).blueprint())
    app.register_blueprint(OpenAIRoutes(model, properties).blueprint())
    app.register_error_handler(HTTPException, front_end_error)
    access.install(app)
    if settings.local_runtime:
        app.register_blueprint(local_runtime(split_payload_parts=settings.split_payload_parts))
    model.start()
    return app


def ping(model: ServedModel) -> Response:
    """SageMaker's health check: 200 once the model accepts requests, until then 503 with the phase in the body."""
    if model.state is EngineState.READY:
        return _json(200, {model.name: {"status": "Healthy"}})
    return _json(503, {model.name: {"status": model.state.value.capitalize(), "phase": model.phase}})


def metrics(model: ServedModel) -> Response:
    """Prometheus metrics, summed over all processes of this server."""
    return Response(model.metrics.page(), content_type=CONTENT_TYPE)


def openapi(document: Callable[[], bytes]) -> Response:
    """The OpenAPI document of the routes."""
    return Response(document(), content_type="application/json")


class Invocations:
    """The invoke routes. The request body decides which dialect applies."""

    def __init__(self, model: ServedModel, dialects: InvocationsDialects, properties: ServingProperties) -> None:
        self._model = model
        self._dialects = dialects
        self._default_accept = properties.default_accept or ""
        self._max_request_size = properties.max_request_size
        self._budget = Budget.of(properties)
        self._batches = BatchBodies(model, dialects, properties)

    def invoke(self, model: str | None = None, version: str | None = None) -> Response:  # noqa: ARG002  only one
        """`POST /invocations`, `/predictions/<model>`, `/models/<model>/invoke`."""
        exchange = Exchange(self._dialects.native)
        try:
            self._check_model(model or request.args.get("model_name"))
            payload = self._payload(exchange)
            if payload.content_type in CONTENT_TYPES:
                self._budget.check_lines(payload.data)
                if is_batch(payload.data):
                    lines = self._batches.lines(exchange, payload)
                    return exchange.stream(next(lines), lines, CONTENT_TYPES[0])
            if payload.content_type == "text/plain":
                self._budget.check_text(payload.data)
            else:
                self._budget.check_json(payload.data)
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
            # "" means the base model, as in a body.
            adapter=request.headers.get("X-Amzn-SageMaker-Adapter-Identifier") or request.args.get("adapter") or None,
        )


def _json(status: int, value: object) -> Response:
    """A JSON response of the front end itself: indented, with a trailing newline, as DJL writes it."""
    body = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    return Response(body, status=status, content_type="application/json")
