"""Anthropic's dialect of messages: a chat in another form.

Source: Anthropic's API reference, "Messages" and "Errors".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from formatters.anthropic.errors import error_document
from formatters.anthropic.messages import MessageFormatter, MessageJsonFormatter, MessageSseFormatter
from formatters.anthropic.schemas import AnthropicError, TokenCount
from lmi_handlers.apis.anthropic.body import CountTokensBody, MessagesBody, client_name
from lmi_handlers.apis.base import Payload, Reply
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.openai.dialect import ChatDialect, check_length, status_of
from lmi_handlers.core.errors import InvalidRequest, LMIError, aliased
from lmi_handlers.core.event_loop import at_once
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.serving.prompts import LONG, LoadedText, prompt_size
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.chat_template import render_chat, takes_late_system

Body = TypeVar("Body", bound=CountTokensBody)


class MessagesDialect(ChatDialect):
    """Dialect of `/v1/messages`, and of bodies with `anthropic_version` on the invoke routes."""

    error_type = AnthropicError
    id_headers = ("request-id",)

    def __init__(
        self, *args: Any, stream_formatters: Sequence[type[MessageFormatter]] = (MessageSseFormatter,), **options: Any
    ) -> None:
        super().__init__(*args, stream_formatters=stream_formatters, document_formatter=MessageJsonFormatter, **options)

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self.decode(payload, MessagesBody)
        chat, places = body.message_chat(system_first=self._system_first)
        if self._reasoning() is None:  # the answer has no thoughts that could be capped
            chat = msgspec.structs.replace(chat, thinking_token_budget=None)

        def alias(field: str) -> str:
            return client_name(chat.alias(field))

        with aliased(client_name):
            request, options = self.translated(payload, chat, ignored, places)
        formatter = self.formatter(payload, request, options)
        return Parsed(request, formatter, alias, partial(check_length, "messages"), "messages")

    @property
    def _system_first(self) -> bool:
        """True if the model's chat template takes a system message only before all others."""
        return not takes_late_system(self._facts().chat_template)

    def decode(self, payload: Payload, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
        """Return a body within its bounds, and the names of its ignored fields. Raises `InvalidRequest`."""
        for name in unknown_names(payload.fields, kind, nulls=True):
            raise InvalidRequest("is not supported", field=name[:100])
        body = decode_typed(payload.data, kind)
        body.check(self._budget)
        return body, body.ignored()

    def read_count(self, payload: Payload) -> tuple[ChatPrompt, tuple[str, ...]]:
        """Return the conversation whose tokens are to be counted. Raises `InvalidRequest`."""
        body, ignored = self.decode(payload, CountTokensBody)
        chat, places = body.chat(system_first=self._system_first)
        with aliased(client_name):
            request, _ = self.translated(payload, chat, (), places)
        content = request.prompts[0].content
        assert isinstance(content, ChatPrompt)  # noqa: S101  as every chat
        return content, ignored

    def error(self, error: LMIError) -> Reply:
        """Render `{"type":"error","error":{"type":"..","message":".."}}`."""
        return Reply(status_of(error), error_document(error))


def count_tokens(model: ServedModel, chat: ChatPrompt) -> TokenCount:
    """Return the number of tokens of a conversation. An image counts as one. Raises `InvalidRequest`, `EngineNotReady`."""
    loaded = model.loaded
    run = model.run_beside if prompt_size(chat) > LONG else at_once
    return run(_counted, loaded, chat)


def _counted(loaded: LoadedText, chat: ChatPrompt) -> TokenCount:
    text = render_chat(loaded.bundle, chat)
    limit = loaded.capabilities.max_model_len
    if (tokens := loaded.tokenizer.estimate_beyond(text, limit)) is not None:
        return TokenCount(tokens)
    return TokenCount(len(loaded.tokenizer.encode(text, add_special_tokens=False)))
