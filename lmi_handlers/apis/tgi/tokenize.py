"""The answers of `/tokenize` and `/chat_tokenize`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from formatters.tgi.schemas import ChatTokenizeResponse
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.openai.body import ChatCompletionBody
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.apis.tgi.body import TokenizeBody
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import InvalidChat, InvalidRequest
from lmi_handlers.core.event_loop import RunBeside, at_once
from lmi_handlers.core.request import ChatPrompt, PromptContent
from lmi_handlers.serving.prompts import LONG, LoadedText, prompt_size
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.chat_template import render_chat
from lmi_handlers.text.spans import TokenSpan, token_spans


class ChatBody(msgspec.Struct, frozen=True):
    """The body of `/chat_tokenize`: a chat request, reduced to the fields that make up the prompt."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    guideline: str | None = None

    def prompt(self) -> ChatPrompt:
        """Return the input of the chat template."""
        messages = [message.with_links(f"messages[{place}]") for place, message in enumerate(self.messages)]
        variables = {} if self.guideline is None else {"guideline": self.guideline}
        return ChatPrompt(messages=messages, tools=self.tools, template_kwargs=variables)


def decode_chat(payload: Payload, budget: Budget) -> tuple[ChatBody, tuple[str, ...]]:
    """Return the body and the names of fields that chat requests do not have. Raises `InvalidRequest`."""
    ignored = unknown_names(payload.fields, ChatCompletionBody, nulls=False)
    body = decode_typed(payload.data, ChatBody)
    budget.check_fields(body)
    return body, ignored


def tokenize(model: ServedModel, body: TokenizeBody) -> list[TokenSpan]:
    """Return the tokens of `inputs`. Raises `InvalidRequest` if there are too many, and `EngineNotReady`."""
    run, loaded = _runner(model, body.inputs), model.loaded
    return run(_spans, loaded, body.inputs, add_special_tokens=body.add_special_tokens)


def chat_tokenize(model: ServedModel, body: ChatBody) -> ChatTokenizeResponse:
    """Return the prompt of a conversation, and its tokens. Raises `InvalidChat`, `InvalidRequest`, `EngineNotReady`."""
    loaded = model.loaded
    with _template_errors():
        prompt = body.prompt()
    return _runner(model, prompt)(_chat_spans, loaded, prompt)


def _runner(model: ServedModel, prompt: PromptContent) -> RunBeside:
    return model.run_beside if prompt_size(prompt) > LONG else at_once


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
    limit = loaded.max_listed_tokens
    spans: list[TokenSpan] = []
    if (tokens := loaded.tokenizer.estimate_beyond(text, limit)) is None:
        spans = token_spans(loaded.tokenizer, text, add_special_tokens=add_special_tokens)
        tokens = len(spans)
    if tokens > limit:
        raise InvalidRequest(f"`inputs` must have less than {limit} tokens. Given: {tokens}")
    return spans
