"""Makes Flask rules of the routes that the APIs declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from flask import Flask, Response

from lmi_handlers.apis.base import Dialect, Payload
from lmi_handlers.apis.custom_code import Invoked
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.invocations import ADAPTER_IDENTIFIER, Invocations
from lmi_handlers.apis.openai.transcriptions import SpeechDialect, Transcribed
from lmi_handlers.apis.routes import JSON, Action, Document, Endpoint, Generation, Probe, Route
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import LMIError, UnsupportedMediaType
from lmi_handlers.serving.custom_model import CustomModel
from lmi_handlers.serving.served import Served
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.web.custom_code import CustomCodeView
from lmi_handlers.web.exchange import Exchange
from lmi_handlers.web.invocations import InvocationsView
from lmi_handlers.web.speech import SpeechView

EXPLAINABLE = "lmi_explainable"
"""Key of the application's extension with the views that generate, and the dialects that a body's field chooses there."""

View = Callable[..., Response]
"""Answers the request that Flask is handling. The arguments are the path's parameters."""


def add_routes(app: Flask, routes: Iterable[Route], model: Served, properties: ServingProperties) -> None:
    """Add the routes to `app`. The name of each view is like `GET /info`."""
    views = _Views(model, properties)
    explainable: dict[str, Mapping[str, Dialect]] = app.extensions.setdefault(EXPLAINABLE, {})
    for route in routes:
        if isinstance(route.endpoint, Generation | Invocations):
            explainable[f"{route.method} {route.path}"] = route.endpoint.claims
        app.add_url_rule(
            flask_rule(route), f"{route.method} {route.path}", views.of(route.endpoint), methods=[route.method]
        )


def flask_rule(route: Route) -> str:
    """Return the path in Flask's notation: `/models/{model}` becomes `/models/<model>`."""
    rule = route.path
    for parameter in route.parameters:
        converter = "path:" if parameter.has_slashes else ""
        rule = rule.replace(f"{{{parameter.name}}}", f"<{converter}{parameter.name}>")
    return rule


class _Views:
    """Makes a view for each kind of endpoint."""

    def __init__(self, model: Served, properties: ServingProperties) -> None:
        self._model = model
        self._properties = properties
        self._max_request_size = properties.max_request_size
        self._budget = Budget.of(properties)

    def of(self, endpoint: Endpoint) -> View:
        match endpoint:
            case Generation():
                return self._generation(endpoint)
            case Document():
                return self._document(endpoint)
            case Action():
                return self._action(endpoint)
            case Probe():
                return self._probe(endpoint)
            case Invocations():
                return InvocationsView(self._generating, endpoint, self._properties).invoke
            case Transcribed():
                return self._speech(endpoint)
            case Invoked():
                return CustomCodeView(self._custom, endpoint.dialects[0], self._properties).invoke
        raise TypeError(f"no view for {type(endpoint).__name__}")

    @property
    def _generating(self) -> ServedModel:
        assert isinstance(self._model, ServedModel)  # noqa: S101  otherwise there are no such routes
        return self._model

    @property
    def _custom(self) -> CustomModel:
        assert isinstance(self._model, CustomModel)  # noqa: S101  as above
        return self._model

    def _speech(self, endpoint: Transcribed) -> View:
        (dialect,) = endpoint.dialects
        assert isinstance(dialect, SpeechDialect)  # noqa: S101  for the type checker
        return SpeechView(self._custom, dialect, self._properties).transcribe

    def _generation(self, endpoint: Generation) -> View:
        model = self._generating

        def view() -> Response:
            exchange = Exchange(endpoint.dialect)
            try:
                payload = self._payload(exchange)
                exchange.dialect = endpoint.of(payload)
                return exchange.generate(model, payload)
            except LMIError as error:
                return exchange.refuse(error)

        return view

    def _document(self, endpoint: Document) -> View:
        dialect, find, read = endpoint.dialects[0], endpoint.find, endpoint.read
        model = self._generating

        def view(**path: str) -> Response:
            exchange = Exchange(dialect, counts=False)
            body: Any = path
            try:
                if read is not None:
                    body, ignored = read(self._payload(exchange))
                    exchange.name_ignored(ignored)
                return exchange.document(msgspec.json.encode(find(model, body)), JSON)
            except LMIError as error:
                return exchange.refuse(error)

        return view

    def _action(self, endpoint: Action) -> View:
        dialect, model = endpoint.dialects[0], self._model

        def view(**path: str) -> Response:
            exchange = Exchange(dialect, counts=False)
            try:
                fields: dict[str, Any] = exchange.http.args.to_dict()
                if data := exchange.body(self._max_request_size):
                    if not exchange.http.is_json:
                        raise UnsupportedMediaType("Expected request with `Content-Type: application/json`")
                    self._budget.check_json(data)
                    fields |= decode_typed(data, dict[str, Any])
                reply = endpoint.act(model, path, fields)
                return exchange.document(reply.body, reply.content_type, reply.status)
            except LMIError as error:
                return exchange.refuse(error)

        return view

    def _probe(self, endpoint: Probe) -> View:
        def view() -> Response:
            reply = endpoint.reply(self._model)
            return Response(reply.body, reply.status, content_type=reply.content_type)

        return view

    def _payload(self, exchange: Exchange) -> Payload:
        if not exchange.http.is_json:
            raise UnsupportedMediaType("Expected request with `Content-Type: application/json`")
        data = exchange.body(self._max_request_size)
        self._budget.check_json(data)
        return Payload(
            data=data,
            request_id=exchange.request_id,
            adapter=exchange.http.headers.get(ADAPTER_IDENTIFIER) or None,
            adapter_field=ADAPTER_IDENTIFIER,
        )
