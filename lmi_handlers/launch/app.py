"""The Flask application: what the APIs declare, put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from flask import Flask, Request, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.custom_code import DOCUMENTATION as CODE_DOCUMENTATION
from lmi_handlers.apis.custom_code import custom_code_routes
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.models.routes import DOCUMENTATION as MODELS_DOCUMENTATION
from lmi_handlers.apis.models.routes import management_routes
from lmi_handlers.apis.models.server import store_routes
from lmi_handlers.apis.openai.transcriptions import NO_SPEECH, SpeechApi
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.apis.routes import Route
from lmi_handlers.apis.server import document_routes, server_routes
from lmi_handlers.config.custom_code import REGISTER, CustomCode
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.server_settings import ServerSettings, behind_loopback, default_workers, is_loopback
from lmi_handlers.config.tasks import SPEECH
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.event_loop import RunBeside
from lmi_handlers.custom_code.formatting.client import FormatterClient
from lmi_handlers.engine.settings import SOCKET_VARIABLE, formatter_socket_path, recent_dir
from lmi_handlers.models.model_apps import ModelApps
from lmi_handlers.models.registry import RUNTIME_VARIABLE, configuration_file, model_runtime_dir
from lmi_handlers.openapi.document import openapi_document
from lmi_handlers.preflight.configuration import (
    AnsweredBy,
    Configuration,
    StoreConfiguration,
    decode_configuration,
    read_configuration,
    read_store,
)
from lmi_handlers.preflight.pages import PageContext, shown_pages, why_no_pages
from lmi_handlers.serving.continuation import given_key
from lmi_handlers.serving.custom_model import CustomModel
from lmi_handlers.serving.served import Served
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.telemetry.recent import RecentRequests
from lmi_handlers.telemetry.tracing import worker_traces
from lmi_handlers.web.access_control import AccessControl
from lmi_handlers.web.api_keys import KEY, ApiKeys
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.web.bidirectional import add_bidirectional_route
from lmi_handlers.web.connection import local_port
from lmi_handlers.web.dispatcher import Dispatcher
from lmi_handlers.web.flask_parts import LeanRequest, NoSessions, url_adapter
from lmi_handlers.web.front_end_errors import FrontEndErrors
from lmi_handlers.web.request_path import PathReader
from lmi_handlers.web.routes import add_routes
from lmi_handlers.web.start_page import add_start_page
from lmi_handlers.web.store_routes import add_store_routes, store_front_app


class ModelApp(Flask):
    """The application that serves one model. Without `async def` views: Flask would look for them three times per request."""

    request_class = LeanRequest
    session_interface = NoSessions()
    model: Served

    def use_threads(self, run_beside: RunBeside) -> None:
        """Run long work with `run_beside`, off the event loop."""
        self.model.run_beside = run_beside

    def start_draining(self) -> None:
        """Make `/ping` report that the worker is shutting down."""
        self.model.start_draining()

    def end_draining(self) -> None:
        """Fail all requests that are still in flight."""
        self.model.end_draining()

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        if request is None or "HTTP_UPGRADE" in request.environ:  # a WebSocket has rules of its own
            return super().create_url_adapter(request)
        return url_adapter(self.url_map, request)


_kept: Configuration | StoreConfiguration | None = None


def keep(configuration: Configuration | StoreConfiguration) -> None:
    """Let `create_app` take this configuration, in this process and those that are forked from it.

    A web worker that replaces another has the configuration of its engine, even if serving.properties has changed.
    """
    global _kept
    _kept = configuration


def create_app() -> ModelApp | Dispatcher:
    """Create the application from serving.properties and the environment, or from what `keep` was given.

    The engine runs in another process. The environment variable `LMI_ENGINE_SOCKET` names its socket; gunicorn's
    configuration `python:lmi_handlers.gunicorn_conf` starts an engine and sets the variable. Raises `ConfigError`.
    """
    worker_traces()  # its imports take a moment, which no request should wait for
    configuration = _kept or read_store(os.environ) or read_configuration(os.environ)
    if isinstance(configuration, StoreConfiguration):
        return store_app(configuration)
    if SOCKET_VARIABLE not in os.environ:
        raise ConfigError(_not_started(SOCKET_VARIABLE))
    bodies = ArrivingBodies.of(configuration.properties.max_request_size)
    app = model_app(configuration, [Path(path) for path in os.environ[SOCKET_VARIABLE].split(os.pathsep)], bodies)
    app.wsgi_app = PathReader(app.wsgi_app)  # type: ignore[method-assign]  # Flask's place for WSGI middleware
    add_bidirectional_route(app, configuration.properties)
    _add_pages(app, configuration)
    return app


def _not_started(variable: str) -> str:
    """Say how to run gunicorn: its arbiter starts the engine, which must happen before the application is made."""
    return f"{variable} is not set: run gunicorn with -c python:lmi_handlers.gunicorn_conf and without --preload"


def _add_pages(app: ModelApp, configuration: Configuration) -> None:
    """Add the pages of a server with one model."""
    settings, properties, model = configuration.settings, configuration.properties, app.model
    if not why_no_pages(properties.console, settings.host, os.environ):
        model.keep_recent()
    context = PageContext(
        settings=settings,
        properties=properties,
        workers=_workers(settings, properties),
        runtime_dir=model.runtime_dir,
        models=lambda: [model],
        configuration=lambda _: configuration,
    )
    for page in shown_pages(settings, properties, os.environ):
        page.add(app, context)


class StoreRoutes(NamedTuple):
    """The routes of a server with several models that no model answers.

    Those of `management` exist only for requests of which `may_manage` is true.
    """

    always: Sequence[Route] = ()
    management: Sequence[Route] = ()
    may_manage: Callable[[], bool] = lambda: False

    def over(self, others: Iterable[Route], *, manages: bool) -> Sequence[Route]:
        """Return these routes, and of `others` those that they do not hide."""
        routes = [*others, *self.always, *(self.management if manages else ())]
        return list({(route.method, route.path): route for route in routes}.values())


class _Parts(NamedTuple):
    """A model and the parts of its application. `absent` says why some routes do not exist."""

    model: Served
    routes: Sequence[Route]
    documentation: Sequence[Documentation]
    apis: Iterable[Api]
    absent: Mapping[str, str]


def model_app(
    configuration: Configuration, socket_paths: Sequence[Path], bodies: ArrivingBodies, front: StoreRoutes | None = None
) -> ModelApp:
    """Create the application for one model, whose engines listen on `socket_paths`. Raises `ConfigError`.

    `bodies` reads the request bodies of all applications of this worker. `front` has the routes that are answered before
    this application is asked.
    """
    front = front or StoreRoutes()
    settings, properties = configuration.settings, configuration.properties
    app = ModelApp(__name__, static_folder=None)
    # One byte more than allowed, because Werkzeug silently truncates a chunked body at its limit.
    app.config["MAX_CONTENT_LENGTH"] = properties.max_request_size + 1
    app.extensions["lmi_bodies"] = bodies
    access = _access(settings, properties)
    own_code = configuration.custom_code
    if own_code is None:
        parts = _parts_of_engine(configuration, socket_paths)
    else:
        parts = _parts_of_code(configuration, own_code, socket_paths[0])
    model = app.model = app.extensions["lmi_model"] = parts.model

    @cache
    def document(manages: bool) -> bytes:
        return openapi_document(
            front.over(routes, manages=manages),
            [*parts.documentation, MODELS_DOCUMENTATION],
            properties,
            has_api_key=access.has_key,
            checks_names=access.checks_names,
        )

    routes = [*parts.routes, *server_routes(lambda: document(front.may_manage()), properties)]
    add_routes(app, routes, model, properties)
    if isinstance(model, ServedModel):
        add_start_page(app, model)
    app.register_error_handler(HTTPException, FrontEndErrors(parts.apis, parts.absent).answer)
    access.install(app)
    model.start()
    return app


def _parts_of_engine(configuration: Configuration, socket_paths: Sequence[Path]) -> _Parts:
    properties = configuration.properties
    has_formatters = configuration.formatters is not None
    model = ServedModel(
        properties,
        socket_paths,
        FormatterClient(formatter_socket_path(socket_paths[0].parent)) if has_formatters else None,
        given_key(os.environ),  # a secret, like the API key
    )
    served = ServedApis(
        Context(
            properties=properties,
            facts=lambda: model.facts,
            sampled_defaults=configuration.backend.sampled_defaults,
            workers=_workers(configuration.settings, properties),
        )
    )
    absent = {**served.absent, **NO_SPEECH}
    return _Parts(model, served.routes(), served.documentation(), served.apis.values(), absent)


def _parts_of_code(configuration: Configuration, code: CustomCode, socket_path: Path) -> _Parts:
    properties = configuration.properties
    is_task = configuration.answered_by is AnsweredBy.TASK
    routes = custom_code_routes(properties, root=is_task, adapters=REGISTER in code.adapter_functions)
    model = CustomModel(properties, socket_path)
    if not (is_task and code.function == SPEECH):
        return _Parts(model, routes, (CODE_DOCUMENTATION,), (), {})
    speech = SpeechApi(Context(properties=properties))
    documentation = (CODE_DOCUMENTATION, speech.documentation)
    return _Parts(model, [*routes, *speech.routes()], documentation, (speech,), {})


def store_app(configuration: StoreConfiguration) -> Dispatcher:
    """Create the application of a server with several models. Raises `ConfigError`.

    The manager of models runs in another process. `LMI_MODELS_RUNTIME` names the directory that it shares with us.
    """
    if RUNTIME_VARIABLE not in os.environ:
        raise ConfigError(_not_started(RUNTIME_VARIABLE))
    settings, store, properties = configuration.settings, configuration.store, configuration.properties
    limit = properties.max_request_size
    bodies = ArrivingBodies.of(limit)
    has_console = not why_no_pages(properties.console, settings.host, os.environ)
    access = _access(settings, properties)

    def may_manage() -> bool:
        if store.management is not None:
            return local_port(request.environ) == store.management[1]
        return store.multi_model or is_loopback(settings.host) or access.has_key

    @cache
    def document(manages: bool) -> bytes:
        """Return the document of a server of which no model is asked."""
        return openapi_document(
            routes.over((), manages=manages),
            [MODELS_DOCUMENTATION],
            properties,
            has_api_key=access.has_key,
            checks_names=access.checks_names,
        )

    own = [*store_routes(), *document_routes(lambda: document(may_manage()))]
    routes = StoreRoutes(own, management_routes(multi_model=store.multi_model), may_manage)
    apps = ModelApps(
        Path(os.environ[RUNTIME_VARIABLE]),
        partial(_app_of, bodies, has_console, routes),
        patience=properties.predict_timeout,
        most_waiting=properties.job_queue_size,
        default_model=store.default_model,
    )
    apis = ServedApis(Context(properties=properties)).apis.values()
    front = store_front_app(apps, access, apis, bodies, limit)
    add_store_routes(front, routes.always, apps, properties)
    add_bidirectional_route(front, properties)
    add_store_routes(front, routes.management, apps, properties, may_manage)
    pages = shown_pages(settings, properties, os.environ)
    dispatcher = Dispatcher(
        front, apps, access, properties, lambda path, environ: any(page.is_for(path, environ) for page in pages)
    )
    if has_console:
        apps.recent = RecentRequests(recent_dir(apps.runtime_dir))
    context = PageContext(
        settings=settings,
        properties=properties,
        workers=_workers(settings, properties),
        runtime_dir=apps.runtime_dir,
        models=lambda: [held.app.model for held in apps.held],
        configuration=partial(_configuration_on, apps),
        may_manage=may_manage,
        apps=apps,
    )
    for page in pages:
        page.add(front, context)
    apps.start()
    return dispatcher


def _app_of(bodies: ArrivingBodies, has_console: bool, front: StoreRoutes, runtime_dir: Path) -> ModelApp:
    configuration = _configuration_in(runtime_dir)
    engines = configuration.engine_settings(str(runtime_dir), 0.0).each
    app = model_app(configuration, [engine.socket_path for engine in engines], bodies, front)
    if has_console:
        app.model.keep_recent()
    return app


def _configuration_in(runtime_dir: Path) -> Configuration:
    """Return the configuration of the model with this runtime directory. Raises `OSError` if its engines have ended."""
    return decode_configuration(configuration_file(runtime_dir).read_bytes())


def _configuration_on(apps: ModelApps, name: str | None) -> Configuration:
    """Return the configuration of one of several models. Raises `KeyError` if it is not loaded."""
    numbers = {held.entry.name: held.entry.number for held in apps.held}
    number = numbers[name or apps.default or ""]
    try:
        return _configuration_in(model_runtime_dir(apps.runtime_dir, number))
    except FileNotFoundError as error:
        raise KeyError(name) from error


def _workers(settings: ServerSettings, properties: ServingProperties) -> int:
    return settings.workers or properties.web_workers or default_workers()


def _access(settings: ServerSettings, properties: ServingProperties) -> AccessControl:
    management = None if settings.store is None else settings.store.management
    loopback_port = management[1] if management is not None and is_loopback(management[0]) else None
    return AccessControl(
        properties.cors_allowed_origin,
        _api_keys(os.environ.get(KEY), settings.api_key_file),  # a secret: read only here and kept out of the settings
        loopback_only=is_loopback(settings.host) or behind_loopback(os.environ),
        loopback_port=loopback_port,
    )


@cache
def _api_keys(key: str | None, path: Path | None) -> ApiKeys:
    """Return the keys for all applications of this worker."""
    return ApiKeys(key, path)
