"""TGI's own routes: `/`, `/generate`, `/generate_stream`, `/tokenize`, `/chat_tokenize`, `/info`, `/health`.

Source: the text-generation-inference 3.3 router and its OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from flask import Blueprint, Response, request

from formatters.tgi.errors import error_document
from formatters.tgi.generate import TgiJsonFormatter, TgiSseFormatter
from formatters.tgi.responses import ChatTokenizeResponse, Info
from lmi_handlers import __version__
from lmi_handlers.apis import root_dialect
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.tgi.body import TokenizeBody, decode_body
from lmi_handlers.apis.tgi.chat import decode_chat
from lmi_handlers.apis.tgi.dialect import GenerateDialect, TgiDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.beside import RunBeside, at_once
from lmi_handlers.core.errors import EngineNotReady, InvalidChat, InvalidRequest, LMIError, UnsupportedMediaType
from lmi_handlers.core.request import ChatPrompt, Prompt
from lmi_handlers.engine.client import EngineState
from lmi_handlers.serving.prompts import LONG, LoadedText, prompt_size
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.chat_template import render_chat
from lmi_handlers.text.spans import TokenSpan, token_spans
from lmi_handlers.web.exchange import Exchange
from lmi_handlers.web.front_end_errors import shown_routes
from lmi_handlers.web.start_page import HEADERS, start_page

JSON = "application/json"

MOST_TOKENS = 65_536
"""Maximum tokens that `/tokenize` returns, unless the model takes more."""


class TgiRoutes:
    """TGI's views. `workers` is the number of web workers."""

    def __init__(self, model: ServedModel, properties: ServingProperties, workers: int) -> None:
        self._model = model
        self._properties = properties
        self._budget = Budget.of(properties)
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
        routes.add_url_rule("/", "GET /", self.root, methods=["GET"])
        routes.add_url_rule("/health", "GET /health", self.health, methods=["GET"])
        routes.add_url_rule("/info", "GET /info", self.info, methods=["GET"])
        return routes

    def root(self) -> Response:
        """Like `/health`, with an HTML page as the body for browsers."""
        health = self.health()
        if not any(name == "text/html" and quality > 0 for name, quality in request.accept_mimetypes):
            return health
        page = start_page(
            model=self._model.name,
            state="ready" if health.status_code == 200 else f"not ready: {self._model.phase}",
            url=request.host_url,
            version=__version__,
            routes=shown_routes(),
        )
        response = Response(page, health.status_code, HEADERS, content_type="text/html; charset=utf-8")
        response.vary.add("accept")
        return response

    def health(self) -> Response:
        """200 without a body once requests are accepted, else 503."""
        if self._model.state is EngineState.READY:
            return Response(status=200)
        return Response(error_document(EngineNotReady("unhealthy")), status=503, content_type=JSON)

    def info(self) -> Response:
        """The model and its limits."""
        try:
            loaded = self._model.loaded
        except EngineNotReady as error:
            return Response(error_document(error), status=503, content_type=JSON)
        capabilities, options = loaded.capabilities, self._properties
        info = Info(
            model_id=options.model_id or self._model.name,
            model_sha=None,
            model_pipeline_tag=options.task,
            max_concurrent_requests=options.job_queue_size,
            max_best_of=options.max_best_of,
            max_stop_sequences=options.max_stop_sequences,
            max_input_tokens=capabilities.max_input_tokens,
            max_total_tokens=capabilities.max_model_len,
            validation_workers=self._workers,
            max_client_batch_size=options.max_client_batch_size,
            router="text-generation-router",
            version=__version__,
            sha=None,
            docker_label=None,
            model_dtype=capabilities.dtype or None,
            model_device_type=capabilities.device or None,
            max_input_length=capabilities.max_input_tokens,
            waiting_served_ratio=0.0,
            max_batch_total_tokens=capabilities.max_num_seqs * capabilities.max_model_len,
            max_waiting_tokens=0,
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
        data = exchange.body(self._properties.max_request_size)
        self._budget.check_json(data)
        return Payload(data=data, request_id=exchange.request_id)

    def _generate(self, exchange: Exchange, payload: Payload) -> Response:
        return exchange.generate(self._model, payload)

    def _tokenize(self, exchange: Exchange, payload: Payload) -> Response:
        body, ignored = decode_body(payload, TokenizeBody)
        exchange.name_ignored(ignored)
        loaded = self._model.loaded
        spans = self._runner(body.inputs)(_spans, loaded, body.inputs, add_special_tokens=body.add_special_tokens)
        return exchange.document(msgspec.json.encode(spans), JSON)

    def _chat_tokenize(self, exchange: Exchange, payload: Payload) -> Response:
        (chat, ignored), loaded = decode_chat(payload, self._budget), self._model.loaded
        exchange.name_ignored(ignored)
        with _template_errors():
            prompt = chat.prompt()
        answer = self._runner(prompt)(_chat_spans, loaded, prompt)
        return exchange.document(msgspec.json.encode(answer), JSON)

    def _runner(self, prompt: Prompt) -> RunBeside:
        return self._model.run_beside if prompt_size(prompt) > LONG else at_once


@contextmanager
def _template_errors() -> Iterator[None]:
    """Turn `InvalidRequest` into `InvalidChat`, which TGI reports as a template error."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidChat(error.message) from error


def _chat_spans(loaded: LoadedText, chat: ChatPrompt) -> ChatTokenizeResponse:
    with _template_errors():
        text = render_chat(loaded.bundle, chat)
    return ChatTokenizeResponse(_spans(loaded, text, add_special_tokens=False), text)


def _spans(loaded: LoadedText, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
    """Tokenise text into spans. Raises `InvalidRequest` if there are too many tokens."""
    most = max(MOST_TOKENS, loaded.capabilities.max_model_len)
    if (tokens := loaded.tokenizer.estimate_beyond(text, most)) is not None:
        raise InvalidRequest(f"`inputs` must have less than {most} tokens. Given: {tokens}")
    return token_spans(loaded.tokenizer, text, add_special_tokens=add_special_tokens)
