"""The Flask application: what the APIs declare, put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flask import Flask
from werkzeug.exceptions import HTTPException

from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.custom_code import custom_code_routes
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.apis.routes import Route
from lmi_handlers.apis.server import server_routes
from lmi_handlers.config.server_settings import default_workers, is_loopback
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.engine.settings import SOCKET_VARIABLE
from lmi_handlers.openapi.document import openapi_document
from lmi_handlers.sagemaker_runtime.routes import local_runtime
from lmi_handlers.serving.custom_model import CustomModel
from lmi_handlers.serving.served import Served
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.start_up import read_configuration
from lmi_handlers.web.access_control import AccessControl
from lmi_handlers.web.exchange import ArrivingBodies
from lmi_handlers.web.front_end_errors import FrontEndErrors
from lmi_handlers.web.routes import add_routes
from lmi_handlers.web.start_page import add_start_page


class _App(Flask):
    """Flask without `async def` views. It would look for them three times per request."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func


def create_app() -> Flask:
    """Create the application from serving.properties and the environment. Raises `ConfigError`.

    The engine runs in another process. The environment variable `LMI_ENGINE_SOCKET` names its socket; gunicorn's
    configuration `python:lmi_handlers.gunicorn_conf` starts an engine and sets the variable.
    """
    configuration = read_configuration(os.environ)
    settings, properties = configuration.settings, configuration.properties
    if SOCKET_VARIABLE not in os.environ:
        raise ConfigError(f"{SOCKET_VARIABLE} is not set: run gunicorn with -c python:lmi_handlers.gunicorn_conf")
    socket_path = Path(os.environ[SOCKET_VARIABLE])
    app = _App(__name__, static_folder=None)
    # One byte more than allowed, because Werkzeug silently truncates a chunked body at its limit.
    app.config["MAX_CONTENT_LENGTH"] = properties.max_request_size + 1
    app.extensions["lmi_bodies"] = ArrivingBodies.of(properties.max_request_size)
    api_key = os.environ.get("API_KEY")  # a secret: read only here and kept out of the settings
    access = AccessControl(properties.cors_allowed_origin, api_key, loopback_only=is_loopback(settings.host))
    model: Served
    own: Sequence[Route]
    documentation: Sequence[Documentation] = ()
    served_apis: Iterable[Api] = ()
    if configuration.custom_code is not None:
        model = CustomModel(properties, socket_path)
        own = custom_code_routes(properties)
    else:
        model = generating = ServedModel(properties, socket_path)
        apis = ServedApis(
            Context(
                properties=properties,
                facts=lambda: generating.facts,
                sampled_defaults=configuration.backend.sampled_defaults,
                workers=settings.workers or properties.web_workers or default_workers(),
            )
        )
        own, documentation, served_apis = apis.routes(), apis.documentation(), apis.apis.values()
    app.extensions["lmi_model"] = model

    @cache
    def document() -> bytes:
        return openapi_document(
            routes, documentation, properties, has_api_key=bool(api_key), checks_names=access.checks_names
        )

    routes = [*own, *server_routes(document)]
    add_routes(app, routes, model, properties)
    if isinstance(model, ServedModel):
        add_start_page(app, model)
    app.register_error_handler(HTTPException, FrontEndErrors(served_apis).answer)
    access.install(app)
    if settings.local_runtime:
        app.register_blueprint(local_runtime(split_payload_parts=settings.split_payload_parts))
    model.start()
    return app
