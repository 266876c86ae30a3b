"""The fields of TGI's chat body that make up the prompt: messages, tools and guideline."""

from __future__ import annotations

from typing import Any

import msgspec

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.openai.body import ChatCompletionBody
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.request import ChatPrompt


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
