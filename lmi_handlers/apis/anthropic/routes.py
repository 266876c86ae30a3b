"""Anthropic's routes: `/v1/messages` and `/v1/messages/count_tokens`.

Source: Anthropic's API reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from formatters.anthropic import schemas
from formatters.anthropic.errors import status_error
from formatters.anthropic.examples import ANSWERS
from formatters.anthropic.messages import MessageJsonLinesFormatter, MessageSseFormatter
from lmi_handlers.apis.anthropic import blocks
from lmi_handlers.apis.anthropic.body import CountTokensBody, CustomTool, InvokedMessagesBody, MessagesBody
from lmi_handlers.apis.anthropic.dialect import MessagesDialect, count_tokens
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import CHAT_EXAMPLE, REQUEST_BOUNDS, Bounds, Documentation, parameter_bounds
from lmi_handlers.apis.routes import JSON, READING, TEXT_GENERATION, Document, Generation, Route, Types, generation

TAG = "Anthropic"


class AnthropicApi(Api):
    """Messages, and their tokens counted. Bodies with `anthropic_version` are Anthropic's on any route."""

    prefixes = ("/v1/messages",)

    def __init__(self, context: Context) -> None:
        properties = context.properties
        self._context = context
        self._messages = self._generation([MessageSseFormatter])
        streams: list[type[MessageSseFormatter]] = [MessageSseFormatter, MessageJsonLinesFormatter]
        lines = properties.has_asynchronous_handler or properties.output_formatter == "jsonlines"
        if lines:  # for requests whose `Accept` names neither
            streams.reverse()
        self.claims = {"anthropic_version": self._generation(streams, InvokedMessagesBody)}
        budget = context.budget
        parts = {"maxItems": budget.max_content_parts}
        prompt: Bounds = {"messages": {"minItems": 1}, "system": parts}
        messages: Bounds = {
            **prompt,
            **parameter_bounds(MessagesBody),
            "top_p": {"minimum": 0, "maximum": 1},
            "cache_salt": REQUEST_BOUNDS["cache_salt"],
        }
        self.documentation = Documentation(
            names={
                "AnthropicMessages": MessagesBody,
                "AnthropicInvocation": InvokedMessagesBody,
                "AnthropicTokens": CountTokensBody,
                "MessageEvent": schemas.MessageEvent,
                "CustomTool": CustomTool,
                "AnthropicText": blocks.InputText,
                "AnthropicImage": blocks.InputImage,
            },
            examples={
                **ANSWERS,
                MessagesBody: CHAT_EXAMPLE | {"max_tokens": 20},
                InvokedMessagesBody: CHAT_EXAMPLE | {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 20},
                CountTokensBody: CHAT_EXAMPLE | {"model": "any"},
            },
            bounds={
                "AnthropicMessages": messages,
                "AnthropicInvocation": messages,
                "AnthropicTokens": prompt,
                "UserMessage": {"content": parts},
                "AssistantMessage": {"content": parts},
                "SystemMessage": {"content": parts},
                "InputToolResult": {"content": parts},
            },
        )

    def routes(self) -> Sequence[Route]:
        dialect = self._messages.dialect
        assert isinstance(dialect, MessagesDialect)  # noqa: S101  made below
        count = Document(
            find=count_tokens,
            read=dialect.read_count,
            bodies={JSON: (CountTokensBody,)},
            answers={JSON: (schemas.TokenCount,)},
            dialects=(dialect,),
            errors=READING,
            task=TEXT_GENERATION,
        )
        return (
            Route("POST", "/v1/messages", "create_message", TAG, "Continue a conversation.", self._messages),
            Route("POST", "/v1/messages/count_tokens", "count_message_tokens", TAG, "Count a prompt's tokens.", count),
        )

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002  not in this API
        return status_error(status, message)

    def _generation(
        self, streams: Sequence[type[MessageSseFormatter]], body: type[MessagesBody] = MessagesBody
    ) -> Generation:
        properties = self._context.properties
        dialect = MessagesDialect(
            self._context.facts,
            budget=self._context.budget,
            tool_call_parser=properties.tool_call_parser,
            reasoning_parser=properties.reasoning_parser,
            enable_reasoning=properties.enable_reasoning,
            stream_formatters=streams,
        )
        answers: dict[str, Types] = {JSON: (schemas.MessageAnswer,)}
        answers.update((kind.content_type, (schemas.MessageEvent,)) for kind in streams)
        return generation(dialect, body, answers, TEXT_GENERATION)
