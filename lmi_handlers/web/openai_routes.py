"""OpenAI's routes, and Aleph Alpha's.

OpenAI's are `/v1/chat/completions`, `/v1/completions` and `/v1/models`. Aleph Alpha's are `/chat/completions` and
`/complete`.
Sources: their API references.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from flask import Blueprint, Response, request

from formatters.openai.responses import ModelInfo, ModelList
from lmi_handlers.apis import default_completion_tokens
from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaDialect
from lmi_handlers.apis.aleph_alpha.completion import AlephAlphaCompletionDialect
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect, CompletionsDialect, OpenAIDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import LMIError, ModelNotFound, UnsupportedMediaType
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.web.exchange import Exchange


class OpenAIRoutes:
    """The views of both APIs."""

    def __init__(self, model: ServedModel, properties: ServingProperties) -> None:
        self._model = model
        self._max_request_size = properties.max_request_size
        self._budget = budget = Budget.of(properties)
        self._chat = ChatDialect(
            lambda: model.facts,
            budget=budget,
            tool_call_parser=properties.tool_call_parser,
            reasoning_parser=properties.reasoning_parser,
            enable_reasoning=properties.enable_reasoning,
        )
        self._completions = CompletionsDialect(
            lambda: model.facts, budget=budget, default_max_tokens=default_completion_tokens(properties)
        )
        self._aleph_alpha = AlephAlphaDialect(lambda: model.facts, budget=budget)
        self._aleph_alpha_completions = AlephAlphaCompletionDialect(lambda: model.facts, budget=budget)
        self._created = int(time.time())

    def blueprint(self) -> Blueprint:
        """Return the routes for an application."""
        routes = Blueprint("openai", __name__)
        dialects: dict[str, OpenAIDialect] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            "/chat/completions": self._aleph_alpha,
            "/complete": self._aleph_alpha_completions,
        }
        for rule, dialect in dialects.items():
            routes.add_url_rule(rule, f"POST {rule}", self._view(dialect), methods=["POST"])
        routes.add_url_rule("/v1/models", "GET /v1/models", self.models, methods=["GET"])
        # Model names may contain slashes.
        routes.add_url_rule("/v1/models/<path:model>", "GET /v1/models/<model>", self.model, methods=["GET"])
        return routes

    def models(self) -> Response:
        """The model and its adapters."""
        return self._tell(lambda: ModelList("list", self._infos()))

    def model(self, model: str) -> Response:
        """The model or adapter of that name."""

        def find() -> ModelInfo:
            for info in self._infos():
                if info.id.lstrip("/") == model:  # a URL path has no leading slash here
                    return info
            raise ModelNotFound(f"The model {model[:200]!r} does not exist")

        return self._tell(find)

    def _tell(self, find: Callable[[], ModelList | ModelInfo]) -> Response:
        exchange = Exchange(self._chat, counts=False)
        try:
            return exchange.document(msgspec.json.encode(find()), "application/json")
        except LMIError as error:
            return exchange.refuse(error)

    def _infos(self) -> list[ModelInfo]:
        """The model and its adapters. Raises `EngineNotReady`."""
        facts = self._model.facts
        parents = {facts.model_id: None, **dict.fromkeys(facts.capabilities.adapters, facts.model_id)}
        return [ModelInfo(name, "model", self._created, "lmi-handlers", parent) for name, parent in parents.items()]

    def _view(self, dialect: OpenAIDialect) -> Callable[[], Response]:
        def view() -> Response:
            exchange = Exchange(dialect)
            try:
                if not request.is_json:
                    raise UnsupportedMediaType("the body must be application/json")
                data = exchange.body(self._max_request_size)
                self._budget.check_json(data)
                return exchange.generate(self._model, Payload(data=data, request_id=exchange.request_id))
            except LMIError as error:
                return exchange.refuse(error)

        return view
