"""TGI's routes: `/generate`, `/generate_stream`, `/tokenize`, `/chat_tokenize`, `/info`, `/health`, and its `/`.

Source: the text-generation-inference 3.3 router and its OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from formatters.tgi import schemas
from formatters.tgi.examples import ANSWERS
from formatters.tgi.generate import TgiJsonFormatter, TgiSseFormatter
from formatters.vllm.examples import ANSWERS as VLLM_ANSWERS
from formatters.vllm.schemas import VllmTokenizeResponse
from lmi_handlers import __version__
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.base import Payload, Reply
from lmi_handlers.apis.documentation import (
    CHAT_EXAMPLE,
    NON_EMPTY,
    PROMPT_EXAMPLE,
    QUESTION,
    STRUCTURED_OUTPUTS_BOUNDS,
    Bounds,
    Documentation,
)
from lmi_handlers.apis.routes import EVENTS, HTML, JSON, READING, TEXT_GENERATION, Document, Probe, Route, generation
from lmi_handlers.apis.structured_outputs import Grammar, StructuredOutputsBody
from lmi_handlers.apis.tgi.body import TgiBody, TgiCompatBody, TgiParameters, TokenizeBody, decode_body
from lmi_handlers.apis.tgi.bounds import tgi_bounds
from lmi_handlers.apis.tgi.dialect import COMPAT_FORMATTERS, CompatDialect, GenerateDialect
from lmi_handlers.apis.tgi.tokenize import ChatBody, chat_tokenize, decode_chat, tokenize
from lmi_handlers.apis.vllm import tokenize as vllm_tokenize
from lmi_handlers.core.errors import EngineNotReady, InvalidChat
from lmi_handlers.engine.status import EngineState
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.spans import TokenSpan

TAG = "Text Generation Inference"
_HEALTH = "Check whether requests are accepted."


class TgiApi(Api):
    """The API of text-generation-inference, except for the routes that it shares with OpenAI's."""

    prefixes: tuple[str, ...] = (
        "/",
        "/generate",
        "/generate_stream",
        "/tokenize",
        "/chat_tokenize",
        "/info",
        "/health",
        "/vertex",
    )

    formatters = tuple(COMPAT_FORMATTERS)

    def __init__(self, context: Context) -> None:
        self._properties = properties = context.properties
        self._budget = context.budget
        self._workers = context.workers
        if properties.pools:  # then these paths are TEI's
            self.prefixes = tuple(prefix for prefix in self.prefixes if prefix not in ("/tokenize", "/info"))
        self._compat = CompatDialect(properties)
        invoked = CompatDialect(properties, properties.output_formatter)
        answers = {JSON: (list[schemas.GenerateResponse],), EVENTS: (schemas.StreamResponse,)}
        self.root = generation(self._compat, TgiCompatBody, answers, TEXT_GENERATION)
        self.native = generation(invoked, TgiCompatBody, answers, TEXT_GENERATION) if properties.tgi_compat else None
        prompt: Bounds = {"inputs": {"minLength": 1}}
        self.documentation = Documentation(
            # TGI's own names. Clients generated from TGI's document expect them.
            names={
                "CompatGenerateRequest": TgiCompatBody,
                "GenerateParameters": TgiParameters,
                "GenerateRequest": TgiBody,
                "GrammarType": Grammar,
                "SimpleToken": TokenSpan,
                "StructuredOutputs": StructuredOutputsBody,
                "TokenizeRequest": TokenizeBody,
                "TokenizeResponse": list[TokenSpan],
            },
            examples={
                **ANSWERS,
                TgiBody: PROMPT_EXAMPLE,
                TgiCompatBody: PROMPT_EXAMPLE,
                TokenizeBody: PROMPT_EXAMPLE,
                vllm_tokenize.TokenizePromptBody: {"prompt": QUESTION},
                vllm_tokenize.TokenizeChatBody: CHAT_EXAMPLE,
                VllmTokenizeResponse: VLLM_ANSWERS[VllmTokenizeResponse],
                ChatBody: CHAT_EXAMPLE,
            },
            bounds={
                "GenerateRequest": prompt,
                "CompatGenerateRequest": prompt,
                "GenerateParameters": tgi_bounds(properties),
                "RegexGrammar": {"value": NON_EMPTY},
                "StructuredOutputs": STRUCTURED_OUTPUTS_BOUNDS,
                "ChatBody": {},
                "TokenizeChatBody": {"messages": {"minItems": 1}},
            },
        )

    def _read_tokenize(self, payload: Payload) -> tuple[object, tuple[str, ...]]:
        """Read TGI's body or one of vLLM's, whose route has the same path."""
        if vllm_tokenize.is_vllms(payload):
            return vllm_tokenize.read_tokenize(payload, self._budget)
        return decode_body(payload, TokenizeBody)

    def routes(self) -> Sequence[Route]:
        properties, dialects = self._properties, (self._compat,)
        whole, events = {JSON: (schemas.GenerateResponse,)}, {EVENTS: (schemas.StreamResponse,)}
        generate = generation(GenerateDialect(properties, TgiJsonFormatter), TgiBody, whole, TEXT_GENERATION)
        generate_stream = generation(GenerateDialect(properties, TgiSseFormatter), TgiBody, events, TEXT_GENERATION)
        tokens = Document(
            find=_tokenize,
            read=self._read_tokenize,
            bodies={JSON: (TokenizeBody, vllm_tokenize.TokenizePromptBody, vllm_tokenize.TokenizeChatBody)},
            answers={JSON: (list[TokenSpan], VllmTokenizeResponse)},
            dialects=dialects,
            errors=READING,
        )
        chat_tokens = Document(
            find=chat_tokenize,
            read=partial(decode_chat, budget=self._budget),
            bodies={JSON: (ChatBody,)},
            answers={JSON: (schemas.ChatTokenizeResponse,)},
            dialects=dialects,
            errors=(*READING, InvalidChat),
            task=TEXT_GENERATION,
        )
        not_ready = (EngineNotReady,)
        health = Probe(reply=self._health, dialects=dialects, errors=not_ready)
        page = msgspec.structs.replace(
            health, answers={HTML: (str,)}, examples={HTML: ""}
        )  # for clients that accept HTML
        info = Probe(reply=self._info, answers={JSON: (schemas.Info,)}, dialects=dialects, errors=not_ready)
        own = (
            Route("POST", "/tokenize", "tokenize", TAG, "Split a prompt into tokens.", tokens),
            Route("GET", "/info", "get_model_info", TAG, "Get the model's name and limits.", info),
        )
        return (
            Route("POST", "/generate", "generate", TAG, "Generate text from a prompt.", generate),
            Route(
                "POST",
                "/generate_stream",
                "generate_stream",
                TAG,
                "Generate text, as a stream of tokens.",
                generate_stream,
            ),
            *(() if properties.pools else own),
            Route(
                "POST",
                "/chat_tokenize",
                "get_chat_tokenize",
                TAG,
                "Split a conversation into tokens.",
                chat_tokens,
            ),
            Route("GET", "/", "root_health", TAG, _HEALTH, page),
            Route("GET", "/health", "health", TAG, _HEALTH, health),
        )

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002
        return schemas.ErrorResponse(message, "generation" if status >= 500 else "validation")

    def _health(self, model: ServedModel) -> Reply:
        """200 without a body once requests are accepted, else 503."""
        if model.state is EngineState.READY:
            return Reply(200, b"", "text/html; charset=utf-8")
        return self._compat.error(EngineNotReady("unhealthy"))

    def _info(self, model: ServedModel) -> Reply:
        try:
            loaded = model.loaded
        except EngineNotReady as error:
            return self._compat.error(error)
        capabilities, options = loaded.capabilities, self._properties
        info = schemas.Info(
            model_id=model.root,
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
        return Reply(200, msgspec.json.encode(info))


def _tokenize(model: ServedModel, body: TokenizeBody | vllm_tokenize.VllmTokenizeBody) -> object:
    return tokenize(model, body) if isinstance(body, TokenizeBody) else vllm_tokenize.tokenize(model, body)
