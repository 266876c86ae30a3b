"""OpenAI's routes: `/v1/chat/completions`, `/v1/completions` and `/v1/models`; and Aleph Alpha's, `/chat/completions`.

Sources: their API references.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from flask import Blueprint, Response, request

from lmi_handlers.dialects.aleph_alpha import AlephAlphaDialect
from lmi_handlers.dialects.base import Payload
from lmi_handlers.dialects.openai import ChatDialect, CompletionsDialect, OpenAIDialect
from lmi_handlers.errors import LMIError, UnsupportedMediaType
from lmi_handlers.http_exchange import Exchange
from lmi_handlers.openapi.openai_responses import ModelInfo, ModelList
from lmi_handlers.properties import ServingProperties
from lmi_handlers.served_model import ServedModel


class OpenAIRoutes:
    """The views, over one model."""

    def __init__(self, model: ServedModel, properties: ServingProperties) -> None:
        self._model = model
        self._max_request_size = properties.max_request_size
        self._chat = ChatDialect(lambda: model.facts, tool_call_parser=properties.tool_call_parser)
        self._completions = CompletionsDialect(lambda: model.facts)
        self._aleph_alpha = AlephAlphaDialect(lambda: model.facts)
        self._created = int(time.time())

    def blueprint(self) -> Blueprint:
        """Return the routes for an application."""
        routes = Blueprint("openai", __name__)
        dialects: dict[str, OpenAIDialect] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            "/chat/completions": self._aleph_alpha,
        }
        for rule, dialect in dialects.items():
            routes.add_url_rule(rule, f"POST {rule}", self._view(dialect), methods=["POST"])
        routes.add_url_rule("/v1/models", "GET /v1/models", self.models, methods=["GET"])
        return routes

    def models(self) -> Response:
        """The model and its adapters."""
        exchange = Exchange(self._chat, counts=False)
        try:
            facts = self._model.facts
        except LMIError as error:
            return exchange.refuse(error)
        models = [self._info(facts.model_id, None)]
        models += [self._info(name, facts.model_id) for name in facts.adapters]
        return exchange.document(msgspec.json.encode(ModelList("list", models)), "application/json")

    def _info(self, name: str, parent: str | None) -> ModelInfo:
        return ModelInfo(name, "model", self._created, "lmi-handlers", parent)

    def _view(self, dialect: OpenAIDialect) -> Callable[[], Response]:
        def view() -> Response:
            exchange = Exchange(dialect)
            try:
                if not request.is_json:
                    raise UnsupportedMediaType("the body must be application/json")
                payload = Payload(data=exchange.body(self._max_request_size), request_id=exchange.request_id)
                return exchange.generate(self._model, payload)
            except LMIError as error:
                return exchange.refuse(error)

        return view
