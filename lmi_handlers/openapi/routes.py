"""The routes as the OpenAPI document describes them: parameters, request bodies, responses and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from formatters import load_formatter_class
from formatters.aleph_alpha import responses as aleph
from formatters.lmi import responses as lmi
from formatters.mindie import responses as mindie
from formatters.openai import responses as openai
from formatters.tgi import responses as tgi
from lmi_handlers.apis import InvocationsDialects, root_dialect
from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaBody, AlephAlphaDialect
from lmi_handlers.apis.aleph_alpha.completion import AlephAlphaCompletionBody
from lmi_handlers.apis.base import Dialect
from lmi_handlers.apis.openai.body import ChatCompletionBody, CompletionBody
from lmi_handlers.apis.openai.dialect import ChatDialect
from lmi_handlers.apis.tgi.body import TgiBody, TgiCompatBody, TokenizeBody
from lmi_handlers.apis.tgi.chat import ChatBody
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import (
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidChat,
    InvalidJson,
    InvalidRequest,
    LMIError,
    MalformedRequest,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    RequestFailed,
    RequestTimeout,
    UnsupportedMediaType,
)
from lmi_handlers.openapi import requests
from lmi_handlers.openapi.front_end import FrontEndError, Health
from lmi_handlers.serving.parsed import ModelFacts
from lmi_handlers.text.spans import TokenSpan

JSON = "application/json"
JSON_LINES = "application/jsonlines"
EVENTS = "text/event-stream"
TEXT = "text/plain"
HTML = "text/html"

TGI = "Text Generation Inference"
ALEPH_ALPHA = "Aleph Alpha"
LMI = "LMI"
SAGEMAKER = "SageMaker"
"""Tags. The first comes from TGI, which uses it for OpenAI's routes too."""

Types = tuple[Any, ...]
"""Alternative types."""

Contents = Mapping[str, Types]
"""Types by content type. For JSON lines, the types of a line; for server-sent events, those of an event's data."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter. `place` is "path", "query" or "header"; path parameters are required.

    `values` lists the allowed values.
    """

    name: str
    place: str
    description: str
    values: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error response: status, reason, types of its JSON body, and whether a `Retry-After` header is sent."""

    status: int
    reason: str
    content: Types
    retry: bool = False


class Route(msgspec.Struct, frozen=True):
    """One method of a path. Generated clients call it `name`. If `answer` is empty, the response has no body."""

    method: str
    path: str
    name: str
    tag: str
    summary: str
    answer: Contents = {}
    body: Contents = {}
    parameters: tuple[Parameter, ...] = ()
    failures: tuple[Failure, ...] = ()


def routes(properties: ServingProperties) -> list[Route]:
    """Return all routes that this configuration serves."""
    return [*_invoke_routes(properties), *_openai_routes(properties), *_tgi_routes(properties), *_server_routes()]


_READING = (
    InvalidJson,
    InvalidRequest,
    MalformedRequest,
    RequestTimeout,
    PayloadTooLarge,
    UnsupportedMediaType,
    EngineNotReady,
    QueueFull,
)
_GENERATING = (*_READING, DeadlineExceeded, RequestFailed, EngineDead)


def _no_model() -> ModelFacts:
    raise EngineNotReady("a document is written without a model")


def _failures(kinds: Iterable[type[LMIError]], *shapes: tuple[Dialect, Any]) -> tuple[Failure, ...]:
    """Return the error responses for these exceptions, one per status, in the formats of the given dialects."""
    reasons: dict[int, dict[str, None]] = {}
    contents: dict[int, dict[Any, None]] = {}
    retry: set[int] = set()
    for dialect, shape in shapes:
        for kind in kinds:
            status = dialect.error(kind("")).status
            reasons.setdefault(status, {})[str(kind.__doc__)] = None
            contents.setdefault(status, {})[shape] = None
            if issubclass(kind, QueueFull | EngineNotReady):
                retry.add(status)
    return tuple(
        Failure(status=status, reason=" ".join(reasons[status]), content=tuple(contents[status]), retry=status in retry)
        for status in sorted(reasons)
    )


# LMI and SageMaker


class _Shape(msgspec.Struct):
    """A dialect's types: request body, answers and error."""

    body: Any
    answer: Contents
    error: Any


def _invoke_routes(properties: ServingProperties) -> list[Route]:
    native = _native_shape(properties)
    dialects = (InvocationsDialects(properties, _no_model).native, ChatDialect(_no_model, budget=Budget.of(properties)))
    unknown = Failure(status=404, reason=str(ModelNotFound.__doc__), content=(FrontEndError,))
    failures = (*_failures(_GENERATING, *zip(dialects, (native.error, openai.OpenAIError), strict=True)), unknown)
    whole = (*native.answer[JSON], openai.ChatCompletion, openai.CompletionFinal)
    events = (*native.answer.get(EVENTS, ()), openai.ChatCompletionChunk, openai.Chunk)
    lines = (*native.answer.get(JSON_LINES, ()), openai.ChatCompletionChunk, *whole, native.error, openai.OpenAIError)
    answer = {**native.answer, JSON: whole, EVENTS: events, JSON_LINES: lines}
    bodies = (native.body, ChatCompletionBody, CompletionBody)
    body: Contents = {JSON: bodies, TEXT: (requests.PlainPrompt,), JSON_LINES: bodies}
    model = Parameter(name="model", place="path", description="The served model's name.", values=(properties.name,))
    version = Parameter(name="version", place="path", description="Any version is the one there is.")
    named = Parameter(name="model_name", place="query", description=model.description, values=model.values)
    adapters = (
        Parameter(name="adapter", place="query", description="The adapter to answer with, unless the body names one."),
        Parameter(name="X-Amzn-SageMaker-Adapter-Identifier", place="header", description="The same, and stronger."),
    )
    paths = {
        "/invocations": ("invocations", (named,)),
        "/predictions/{model}": ("predictions", (model,)),
        "/predictions/{model}/{version}": ("predictions_of_version", (model, version)),
        "/models/{model}/invoke": ("invoke_model", (model,)),
    }
    summary = "Answer a prompt, or a conversation; of JSON lines, that of each."
    return [
        Route("post", path, name, LMI, summary, answer, body, (*parameters, *adapters), failures)
        for path, (name, parameters) in paths.items()
    ]


def _native_shape(properties: ServingProperties) -> _Shape:
    if properties.tgi_compat:
        return _root_shape(properties)
    if not properties.rolling:
        answer: dict[str, Types] = {
            JSON: (list[lmi.DynamicBatchText],),
            JSON_LINES: (lmi.DynamicBatchOutputs,),
        }
        return _Shape(requests.LmiRequest, answer, lmi.DynamicBatchError)
    record = (lmi.LmiRecord,)
    answer = {JSON: (lmi.LmiResponse, list[lmi.LmiResponse]), JSON_LINES: record, EVENTS: record}
    if properties.output_formatter is not None:  # may come from another package, so its output type is unknown
        answer.setdefault(load_formatter_class(properties.output_formatter).content_type, (object,))
    return _Shape(requests.LmiRequest, answer, lmi.LmiError)


# OpenAI and Aleph Alpha


def _openai_routes(properties: ServingProperties) -> list[Route]:
    budget = Budget.of(properties)
    shape = (ChatDialect(_no_model, budget=budget), openai.OpenAIError)
    failures, not_ready = _failures(_GENERATING, shape), _failures([EngineNotReady], shape)
    # `FrontEndError` is returned for names that are not valid in a URL path.
    unknown = Failure(status=404, reason=str(ModelNotFound.__doc__), content=(openai.OpenAIError, FrontEndError))
    chat: Contents = {JSON: (openai.ChatCompletion,), EVENTS: (openai.ChatCompletionChunk,)}
    text: Contents = {JSON: (openai.CompletionFinal,), EVENTS: (openai.Chunk,)}
    chat_body: Contents = {JSON: (ChatCompletionBody,)}
    text_body: Contents = {JSON: (CompletionBody,)}
    aleph_alpha: Contents = {JSON: (openai.ChatCompletion,), EVENTS: (aleph.AlephAlphaChunk,)}
    aleph_alpha_body: Contents = {JSON: (AlephAlphaBody,)}
    aleph_alpha_text: Contents = {
        JSON: (aleph.AlephAlphaCompletions,),
        EVENTS: (
            aleph.AlephAlphaStreamChunk,
            aleph.AlephAlphaStreamSummary,
            aleph.AlephAlphaCompletionSummary,
        ),
    }
    aleph_alpha_text_body: Contents = {JSON: (AlephAlphaCompletionBody,)}
    aleph_alpha_failures = _failures(_GENERATING, (AlephAlphaDialect(_no_model, budget=budget), aleph.AlephAlphaError))
    models: Contents = {JSON: (openai.ModelList,)}
    return [
        Route(
            "post",
            "/v1/chat/completions",
            "chat_completions",
            TGI,
            "Answer a conversation.",
            chat,
            chat_body,
            (),
            failures,
        ),
        Route(
            "post",
            "/chat/completions",
            "aleph_alpha_chat_completions",
            ALEPH_ALPHA,
            "Answer a conversation.",
            aleph_alpha,
            aleph_alpha_body,
            (),
            aleph_alpha_failures,
        ),
        Route(
            "post",
            "/complete",
            "aleph_alpha_complete",
            ALEPH_ALPHA,
            "Answer a prompt.",
            aleph_alpha_text,
            aleph_alpha_text_body,
            (),
            aleph_alpha_failures,
        ),
        Route("post", "/v1/completions", "completions", TGI, "Answer prompts.", text, text_body, (), failures),
        Route("get", "/v1/models", "openai_get_model_info", TGI, "Tell what is served.", models, failures=not_ready),
        Route(
            "get",
            "/v1/models/{model}",
            "openai_retrieve_model",
            TGI,
            "Tell of one of them.",
            {JSON: (openai.ModelInfo,)},
            {},
            (Parameter(name="model", place="path", description="Its name, or an adapter's."),),
            (*not_ready, unknown),
        ),
    ]


# TGI


def _root_shape(properties: ServingProperties) -> _Shape:
    if properties.dialect == "mindie":
        answer: Contents = {JSON: (mindie.MindieResponse,), EVENTS: (mindie.MindieStreamResponse,)}
        return _Shape(requests.MindieRequest, answer, tgi.ErrorResponse)
    answer = {JSON: (list[tgi.GenerateResponse],), EVENTS: (tgi.StreamResponse,)}
    return _Shape(TgiCompatBody, answer, tgi.ErrorResponse)


def _tgi_routes(properties: ServingProperties) -> list[Route]:
    shape = (root_dialect(properties), tgi.ErrorResponse)
    failed, unread = _failures(_GENERATING, shape), _failures(_READING, shape)
    unchatted, not_ready = _failures((*_READING, InvalidChat), shape), _failures([EngineNotReady], shape)
    root = _root_shape(properties)
    root_body: Contents = {JSON: (root.body,)}
    body: Contents = {JSON: (TgiBody,)}
    tokenize: Contents = {JSON: (TokenizeBody,)}
    chat: Contents = {JSON: (ChatBody,)}
    whole: Contents = {JSON: (tgi.GenerateResponse,)}
    event: Contents = {EVENTS: (tgi.StreamResponse,)}
    tokens: Contents = {JSON: (list[TokenSpan],)}
    chat_tokens: Contents = {JSON: (tgi.ChatTokenizeResponse,)}
    info: Contents = {JSON: (tgi.Info,)}
    health = "Tell whether requests are taken."
    page: Contents = {HTML: (str,)}  # for clients that accept HTML
    return [
        Route("post", "/", "compat_generate", TGI, "Answer a prompt.", root.answer, root_body, (), failed),
        Route("post", "/generate", "generate", TGI, "Answer a prompt, whole.", whole, body, (), failed),
        Route(
            "post", "/generate_stream", "generate_stream", TGI, "Answer a prompt, as a stream.", event, body, (), failed
        ),
        Route("post", "/tokenize", "tokenize", TGI, "Tell a prompt's tokens.", tokens, tokenize, (), unread),
        Route(
            "post",
            "/chat_tokenize",
            "get_chat_tokenize",
            TGI,
            "Tell a chat's tokens.",
            chat_tokens,
            chat,
            (),
            unchatted,
        ),
        Route("get", "/", "root_health", TGI, health, page, failures=not_ready),
        Route("get", "/health", "health", TGI, health, failures=not_ready),
        Route("get", "/info", "get_model_info", TGI, "Tell what is served, and its limits.", info, failures=not_ready),
    ]


# The server's own


def _server_routes() -> list[Route]:
    states = (dict[str, Health],)
    ping: Contents = {JSON: states}
    unhealthy = (Failure(status=503, reason=str(EngineNotReady.__doc__), content=states),)
    health = "Tell whether requests are taken, and if not, why."
    document: Contents = {JSON: (dict[str, object],)}
    text: Contents = {TEXT: (str,)}
    return [
        Route("get", "/ping", "ping", SAGEMAKER, health, ping, failures=unhealthy),
        Route("post", "/ping", "post_ping", SAGEMAKER, health, ping, failures=unhealthy),
        Route("get", "/metrics", "metrics", TGI, "Tell Prometheus metrics.", text),
        Route("get", "/openapi.json", "openapi", TGI, "Tell this document.", document),
        Route("get", "/api-doc/openapi.json", "api_doc", TGI, "Tell this document, where TGI has it.", document),
    ]
