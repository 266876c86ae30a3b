"""OpenAI's routes: chat completions, completions, responses, embeddings and models, all under `/v1`.

Sources: OpenAI's API reference; TGI's OpenAPI document for names.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from formatters.openai import responses_schemas, schemas
from formatters.openai.chat import ChatJsonLinesFormatter, ChatSseFormatter
from formatters.openai.completions import CompletionJsonLinesFormatter, CompletionSseFormatter
from formatters.openai.errors import status_error
from formatters.openai.examples import ANSWERS
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import CHAT_EXAMPLE, QUESTION, REQUEST_BOUNDS, Documentation
from lmi_handlers.apis.openai import messages, responses_body, responses_items, tools
from lmi_handlers.apis.openai.body import (
    DEFAULT_COMPLETION_TOKENS,
    ChatCompletionBody,
    CompletionBody,
    ResponseFormat,
)
from lmi_handlers.apis.openai.bounds import chat_bounds, completion_bounds, response_bounds
from lmi_handlers.apis.openai.dialect import ChatDialect, CompletionsDialect, Kind
from lmi_handlers.apis.openai.embeddings import EmbeddingsBody, EmbeddingsDialect
from lmi_handlers.apis.openai.responses_dialect import ResponseDialect
from lmi_handlers.apis.routes import (
    EVENTS,
    JSON,
    TEXT_EMBEDDING,
    TEXT_GENERATION,
    Document,
    Failure,
    FrontEndError,
    Generation,
    Parameter,
    Route,
    Types,
    generation,
)
from lmi_handlers.core.errors import EngineNotReady, ModelNotFound
from lmi_handlers.serving.served_model import ServedModel

OWNER = "lmi-handlers"
TAG = "OpenAI"


class OpenAIApi(Api):
    """Chat completions, text completions, responses, embeddings and models.

    Bodies with `messages` or `prompt` are OpenAI's on any route. With `option.task=text-embedding`, so are those with
    `input`.
    """

    prefixes = ("/v1",)

    def __init__(self, context: Context) -> None:
        self._context = context
        self._created = int(time.time())
        as_lines = context.properties.streams_lines
        self._chat = self._chats([ChatSseFormatter])
        self._completion = self._completions([CompletionSseFormatter])
        embeds = None if context.properties.chat_embeddings else TEXT_EMBEDDING  # None is any task
        embeddings = EmbeddingsDialect(context.facts, budget=context.budget, normalize=context.properties.normalize)
        self._embeddings = generation(embeddings, EmbeddingsBody, {JSON: (schemas.EmbeddingList,)}, embeds)
        self._response = self._responses()
        self.claims = {
            "messages": self._chats(_ordered(ChatSseFormatter, ChatJsonLinesFormatter, as_lines=as_lines)),
            "prompt": self._completions(
                _ordered(CompletionSseFormatter, CompletionJsonLinesFormatter, as_lines=as_lines)
            ),
            **({"input": self._embeddings} if context.properties.embeds else {}),
        }
        self.documentation = Documentation(
            # TGI's names, which clients generated from TGI's document expect
            names={
                "ChatRequest": ChatCompletionBody,
                "Completion": schemas.Completion,
                "CompletionRequest": CompletionBody,
                "EmbeddingsRequest": EmbeddingsBody,
                "Function": schemas.Function,
                "FunctionCallMessage": schemas.FunctionCallMessage,
                "FunctionDefinition": tools.Function,
                "MessageChunk": messages.Part,
                "MessageContent": str | list[messages.Part],
                "NamedToolChoice": tools.ToolChoice,
                "OutputMessage": schemas.OutputMessage,
                "Prompt": str | list[int | str | list[int]],
                "ResponseFormat": ResponseFormat,
                "TextMessage": schemas.TextMessage,
                "ToolCallMessage": schemas.ToolCallMessage,
                "ToolChoice": str | tools.ToolChoice | None,
                "ToolType": str | tools.ToolChoice,
                "Url": messages.ImageUrl,
                # for references from types that msgspec cannot tell apart
                "FunctionTool": responses_body.FunctionTool,
                "InputCall": responses_items.InputCall,
                "InputCallOutput": responses_items.InputCallOutput,
                "InputMessage": responses_items.InputMessage,
                "InputReasoning": responses_items.InputReasoning,
                "ResponseStreamEvent": responses_schemas.StreamEvent,
                "ResponseText": responses_body.ResponseText,
                "ResponseToolChoice": responses_body.ResponseToolChoice,
                "ResponsesRequest": responses_body.ResponseBody,
            },
            examples={
                **ANSWERS,
                ChatCompletionBody: CHAT_EXAMPLE | {"max_tokens": 20},
                CompletionBody: {"prompt": QUESTION, "max_tokens": 20},
                EmbeddingsBody: {"input": QUESTION},
                responses_body.ResponseBody: {"input": QUESTION, "max_output_tokens": 20},
            },
            bounds={
                "ChatRequest": chat_bounds(),
                "CompletionRequest": completion_bounds(),
                "EmbeddingsRequest": {"dimensions": {"minimum": 1}, **REQUEST_BOUNDS},
                "InputMessage": {"content": {"maxItems": context.budget.max_content_parts}},
                "InputCallOutput": {"output": {"maxItems": context.budget.max_content_parts}},
                "ResponsesRequest": response_bounds(context.budget),
            },
            union_bounds={
                "Prompt": {"minItems": 1},
                "MessageContent": {"maxItems": context.budget.max_content_parts},
            },
            kept=() if context.properties.pools else ("Completion", "ToolType"),  # TGI's document has them
        )

    def routes(self) -> Sequence[Route]:
        dialects, not_ready = self._chat.dialects, (EngineNotReady,)
        models = Document(find=self._models, answers={JSON: (schemas.ModelList,)}, dialects=dialects, errors=not_ready)
        model = Document(find=self._model, answers={JSON: (schemas.ModelInfo,)}, dialects=dialects, errors=not_ready)
        named = Parameter(
            name="model", place="path", description="The model's or the adapter's name.", has_slashes=True
        )
        unknown_error = self.router_error(404, "NotFound", "The model 'other' does not exist")
        # `FrontEndError` is for names that are not valid in a URL path.
        unknown = Failure(
            status=404,
            reason=str(ModelNotFound.__doc__),
            content=(schemas.OpenAIError, FrontEndError),
            examples=(unknown_error,),
        )
        return (
            Route("POST", "/v1/chat/completions", "chat_completions", TAG, "Continue a conversation.", self._chat),
            Route("POST", "/v1/completions", "completions", TAG, "Generate text from prompts.", self._completion),
            Route("POST", "/v1/embeddings", "embeddings", TAG, "Embed texts.", self._embeddings),
            Route("POST", "/v1/responses", "create_response", TAG, "Continue a conversation of items.", self._response),
            Route("GET", "/v1/models", "openai_get_model_info", TAG, "List the model and its adapters.", models),
            Route(
                "GET",
                "/v1/models/{model}",
                "openai_retrieve_model",
                TAG,
                "Get the model or one of its adapters.",
                model,
                (named,),
                (unknown,),
            ),
        )

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002  not in this API
        return status_error(status, message)

    def _chats(self, stream_formatters: Sequence[type[ChatSseFormatter]]) -> Generation:
        dialect = ChatDialect(
            self._context.facts, **self._parsers(), budget=self._context.budget, stream_formatters=stream_formatters
        )
        chunk: Types = (schemas.ChatCompletionChunk,)
        answers: dict[str, Types] = {JSON: (schemas.ChatCompletion,)}
        answers.update((kind.content_type, chunk) for kind in stream_formatters)
        return generation(dialect, ChatCompletionBody, answers, TEXT_GENERATION)

    def _responses(self) -> Generation:
        dialect = ResponseDialect(self._context.facts, **self._parsers(), budget=self._context.budget)
        answers = {JSON: (responses_schemas.ResponseObject,), EVENTS: (responses_schemas.StreamEvent,)}
        return generation(dialect, responses_body.ResponseBody, answers, TEXT_GENERATION)

    def _parsers(self) -> dict[str, Any]:
        """Return the options that say how to find tool calls and reasoning."""
        names = ("tool_call_parser", "reasoning_parser", "enable_reasoning")
        return {name: getattr(self._context.properties, name) for name in names}

    def _completions(self, stream_formatters: Sequence[type[CompletionSseFormatter]]) -> Generation:
        # TGI, unlike OpenAI, generates as many tokens as fit by default.
        default_max_tokens = None if self._context.properties.tgi_compat else DEFAULT_COMPLETION_TOKENS
        dialect = CompletionsDialect(
            self._context.facts,
            budget=self._context.budget,
            default_max_tokens=default_max_tokens,
            stream_formatters=stream_formatters,
        )
        answers: dict[str, Types] = {JSON: (schemas.CompletionFinal,)}
        answers.update((kind.content_type, (schemas.Chunk,)) for kind in stream_formatters)
        return generation(dialect, CompletionBody, answers, TEXT_GENERATION)

    def _models(self, model: ServedModel, _: object) -> schemas.ModelList:
        return schemas.ModelList("list", self._infos(model))

    def _model(self, model: ServedModel, path: Mapping[str, str]) -> schemas.ModelInfo:
        for info in self._infos(model):
            if info.id.lstrip("/") == path["model"]:  # a URL path has no leading slash here
                return info
        raise ModelNotFound(f"The model {path['model'][:200]!r} does not exist")

    def _infos(self, model: ServedModel) -> list[schemas.ModelInfo]:
        return model_infos(model, model.properties.served_names, self._created)


def model_infos(model: ServedModel, names: Sequence[str], created: int) -> list[schemas.ModelInfo]:
    """Return a loaded model under each of its names, and its adapters."""
    capabilities = model.facts.capabilities
    return [
        *(
            schemas.ModelInfo(name, "model", created, OWNER, None, model.root, capabilities.max_model_len)
            for name in dict.fromkeys(names)
        ),
        *(schemas.ModelInfo(adapter, "model", created, OWNER, names[0]) for adapter in capabilities.adapters),
    ]


def _ordered(events: type[Kind], lines: type[Kind], *, as_lines: bool) -> Sequence[type[Kind]]:
    """Return the formatters of streams on the invoke routes. The first is for requests whose `Accept` names neither."""
    return (lines, events) if as_lines else (events, lines)
