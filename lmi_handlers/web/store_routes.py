"""The routes of a server with several models that are not about one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, NotFound

from lmi_handlers.apis.api import Api
from lmi_handlers.apis.base import Reply
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.management import ManagementDialect
from lmi_handlers.apis.routes import Action, Probe, Route
from lmi_handlers.apis.server import DOCUMENT_PATHS
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import EngineNotReady, LMIError, QueueFull, UnsupportedMediaType
from lmi_handlers.core.usage import Usage
from lmi_handlers.models.model_apps import ModelApps
from lmi_handlers.web.access_control import KEY_LABEL, AccessControl
from lmi_handlers.web.access_log import log_request
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.web.dispatcher import REFUSAL, Refusal
from lmi_handlers.web.exchange import request_id
from lmi_handlers.web.front_end_errors import FrontEndErrors
from lmi_handlers.web.identity import check_no_session
from lmi_handlers.web.routes import flask_rule

_UNKNOWN = "is not a route of this address: LMI_MANAGEMENT_ADDRESS is where models are loaded and unloaded"


def store_front_app(
    apps: ModelApps, access: AccessControl, apis: Iterable[Api], bodies: ArrivingBodies, max_request_size: int
) -> Flask:
    """Return the application, without routes. It answers requests that the dispatcher refuses, in their API's format."""
    app = Flask("lmi_handlers.web.store_routes", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_request_size + 1
    app.extensions["lmi_bodies"] = bodies
    app.extensions["lmi_model"] = apps
    errors = FrontEndErrors(apis, {})
    access.install(app)

    @app.before_request
    def refuse() -> Response | None:
        refusal: Refusal | None = request.environ.get(REFUSAL)
        if refusal is None:
            return None
        response = _with_retry(errors.refusal(refusal.error), refusal.error)
        for held in apps.held:
            if held.entry.name == refusal.model:
                held.app.model.metrics.responded(response.status_code)
        return _noted(response, apps, refusal.model, refusal.arrived, refusal.error)

    app.register_error_handler(HTTPException, errors.answer)
    return app


def _noted(response: Response, apps: ModelApps, model: str, arrived: float, error: LMIError | None) -> Response:
    """Log a request that no model has answered, and tell its client the id."""
    response.headers["x-request-id"] = request_id(request.headers)
    usage = Usage(started=arrived, key_label=request.environ.get(KEY_LABEL, ""))
    fields = log_request(
        model=model[:200],
        request_id=response.headers["x-request-id"],
        path=request.path,
        status=response.status_code,
        usage=usage,
        error=error,
    )
    if apps.recent is not None and request.path not in DOCUMENT_PATHS:  # the console itself asks for them
        apps.recent.add(fields, usage)
    return response


def add_store_routes(
    app: Flask,
    routes: Iterable[Route],
    apps: ModelApps,
    properties: ServingProperties,
    is_allowed: Callable[[], bool] = lambda: True,
) -> None:
    """Add routes about all models. Those that are not allowed for the current request do not exist for it."""
    for route in routes:
        view = _view(route.endpoint, apps, properties, is_allowed)
        app.add_url_rule(flask_rule(route), f"{route.method} {route.path}", view, methods=[route.method])


def _view(
    endpoint: Any, apps: ModelApps, properties: ServingProperties, is_allowed: Callable[[], bool]
) -> Callable[..., Response]:
    budget = Budget.of(properties)

    def status() -> Response:
        return _response(endpoint.reply(apps))

    def action(**path: str) -> Response:
        if not is_allowed():
            raise NotFound(f"{request.path[:200]} {_UNKNOWN}")
        arrived = time.monotonic()
        failure: LMIError | None = None
        try:
            fields = request.args.to_dict() | _fields(budget, properties.max_request_size)
            response = _response(endpoint.act(apps, path, fields))
        except LMIError as error:
            response = _with_retry(_response(ManagementDialect().error(error)), error)
            failure = error.without_frames()
        return _noted(response, apps, path.get("model", ""), arrived, failure)

    assert isinstance(endpoint, Probe | Action)  # noqa: S101  there are no others
    return status if isinstance(endpoint, Probe) else action


def _fields(budget: Budget, max_request_size: int) -> dict[str, Any]:
    """Return the fields of a JSON body, if there is one."""
    check_no_session(request.headers)
    bodies: ArrivingBodies = _extension("lmi_bodies")
    data = bodies.whole(request, max_request_size)
    if not data:
        return {}
    if not request.is_json:
        raise UnsupportedMediaType("Expected request with `Content-Type: application/json`")
    budget.check_json(data)
    return decode_typed(data, dict[str, Any])


def _extension(name: str) -> Any:
    from flask import current_app

    return current_app.extensions[name]


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, content_type=reply.content_type)


def _with_retry(response: Response, error: LMIError) -> Response:
    if isinstance(error, QueueFull | EngineNotReady):
        response.headers["Retry-After"] = str(error.retry_after)
    return response
