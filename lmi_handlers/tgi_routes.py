"""TGI's own routes: `/`, `/generate`, `/generate_stream`, `/tokenize`, `/chat_tokenize`, `/info`, `/health`.

Source: the text-generation-inference 3.3 router and its OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from flask import Blueprint, Response, request

from formatters.tgi import TgiJsonFormatter, TgiSseFormatter, error_document
from lmi_handlers import __version__
from lmi_handlers.dialects import root_dialect
from lmi_handlers.dialects.base import Payload
from lmi_handlers.dialects.tgi import GenerateDialect, TgiDialect
from lmi_handlers.dialects.tgi_chat import decode_chat
from lmi_handlers.dialects.tgi_request import TgiBody, decode_body
from lmi_handlers.engine.client import EngineState
from lmi_handlers.errors import EngineNotReady, InvalidChat, InvalidRequest, LMIError, UnsupportedMediaType
from lmi_handlers.http_exchange import Exchange
from lmi_handlers.properties import ServingProperties
from lmi_handlers.served_model import ServedModel
from lmi_handlers.text.chat_template import render_chat
from lmi_handlers.text.spans import TokenSpan, token_spans

JSON = "application/json"


class ChatTokens(msgspec.Struct, frozen=True):
    """The answer of `/chat_tokenize`."""

    tokenize_response: list[TokenSpan]
    templated_text: str


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/info`, in TGI's order. `version` is this server's."""

    model_id: str
    model_sha: str | None = None
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str = "text-generation-router"
    version: str
    sha: str | None = None
    docker_label: str | None = None


class TgiRoutes:
    """The views, over one model. `workers` is how many processes like this one there are."""

    def __init__(self, model: ServedModel, properties: ServingProperties, workers: int) -> None:
        self._model = model
        self._properties = properties
        self._workers = workers
        self._root = root_dialect(properties)

    def blueprint(self) -> Blueprint:
        """Return the routes for an application."""
        routes = Blueprint("tgi", __name__)
        generate = GenerateDialect(self._properties, TgiJsonFormatter)
        generate_stream = GenerateDialect(self._properties, TgiSseFormatter)
        posts: dict[str, tuple[TgiDialect, Callable[[Exchange, Payload], Response]]] = {
            "/": (self._root, self._generate),
            "/generate": (generate, self._generate),
            "/generate_stream": (generate_stream, self._generate),
            "/tokenize": (self._root, self._tokenize),
            "/chat_tokenize": (self._root, self._chat_tokenize),
        }
        for rule, (dialect, answer) in posts.items():
            routes.add_url_rule(rule, f"POST {rule}", self._view(dialect, answer), methods=["POST"])
        for rule in ("/", "/health"):
            routes.add_url_rule(rule, f"GET {rule}", self.health, methods=["GET"])
        routes.add_url_rule("/info", "GET /info", self.info, methods=["GET"])
        return routes

    def health(self) -> Response:
        """200 without a body once requests are taken."""
        if self._model.state is EngineState.READY:
            return Response(status=200)
        return Response(error_document(EngineNotReady("unhealthy")), status=503, content_type=JSON)

    def info(self) -> Response:
        """What is served, and within which limits."""
        try:
            limits = self._model.loaded.limits
        except EngineNotReady as error:
            return Response(error_document(error), status=503, content_type=JSON)
        options = self._properties
        info = Info(
            model_id=options.model_id or self._model.name,
            model_pipeline_tag=options.task,
            max_concurrent_requests=options.job_queue_size,
            max_best_of=options.max_best_of,
            max_stop_sequences=options.max_stop_sequences,
            max_input_tokens=limits.max_input_tokens,
            max_total_tokens=limits.max_total_tokens,
            validation_workers=self._workers,
            max_client_batch_size=options.max_client_batch_size,
            version=__version__,
        )
        return Response(msgspec.json.encode(info), content_type=JSON)

    def _view(self, dialect: TgiDialect, answer: Callable[[Exchange, Payload], Response]) -> Callable[[], Response]:
        def view() -> Response:
            exchange = Exchange(dialect, counts=answer == self._generate)
            try:
                return answer(exchange, self._payload(exchange))
            except LMIError as error:
                return exchange.refuse(error)

        return view

    def _payload(self, exchange: Exchange) -> Payload:
        if not request.is_json:
            raise UnsupportedMediaType("Expected request with `Content-Type: application/json`")
        return Payload(data=exchange.body(self._properties.max_request_size), request_id=exchange.request_id)

    def _generate(self, exchange: Exchange, payload: Payload) -> Response:
        return exchange.generate(self._model, payload)

    def _tokenize(self, exchange: Exchange, payload: Payload) -> Response:
        body, _ = decode_body(payload, TgiBody)
        spans = token_spans(self._model.loaded.tokenizer, body.inputs, add_special_tokens=True)
        return exchange.document(msgspec.json.encode(spans), JSON)

    def _chat_tokenize(self, exchange: Exchange, payload: Payload) -> Response:
        chat, loaded = decode_chat(payload), self._model.loaded
        try:
            text = render_chat(loaded.bundle, chat.plain_messages(), tools=chat.tools)
        except InvalidRequest as error:
            raise InvalidChat(error.message) from error
        spans = token_spans(loaded.tokenizer, text, add_special_tokens=False)
        return exchange.document(msgspec.json.encode(ChatTokens(spans, text)), JSON)
