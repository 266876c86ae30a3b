"""Aleph Alpha's chat, `POST /chat/completions`: a stricter relative of OpenAI's.

Source: Aleph Alpha's API reference, "Chat". `maximum_tokens` and `top_k` are fields that its own client sends. That
client retries after 408, 429 and 503.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from formatters.aleph_alpha.chat import AlephAlphaJsonFormatter, AlephAlphaSseFormatter
from formatters.aleph_alpha.errors import error_document
from formatters.aleph_alpha.schemas import AlephAlphaError
from lmi_handlers.apis.base import Payload, Reply
from lmi_handlers.apis.openai.body import ChatCompletionBody, StreamOptions
from lmi_handlers.apis.openai.dialect import ChatDialect, status_of
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.apis.parameters import Param, values_of
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import DeadlineExceeded, InvalidRequest, LMIError, QueueFull, UnsupportedFeature, entry_of
from lmi_handlers.serving.parsed import ModelFacts, Parsed

Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Positive = Annotated[int, msgspec.Meta(ge=1)]

REJECTED = ("response_format", "tools", "tool_choice", "parallel_tool_calls")
"""Fields that the API reference rejects. Other unknown fields are ignored; the reference ignores some of them too."""


class AlephAlphaMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation. A `name` is ignored."""

    role: Literal["system", "user", "assistant"]
    content: str


class AlephAlphaBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/chat/completions`."""

    messages: list[AlephAlphaMessage]
    model: str
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    max_tokens: Positive | None = None
    maximum_tokens: Annotated[Positive, Param("max_tokens")] | None = None
    n: Positive | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def chat(self) -> ChatCompletionBody:
        """Convert to OpenAI's body."""
        messages = [Message(message.role, message.content) for message in self.messages]
        return ChatCompletionBody(**{**values_of(self, ChatCompletionBody), "messages": messages})


class AlephAlphaDialect(ChatDialect):
    """Dialect of `/chat/completions`.

    After an optional system message, user and assistant alternate; the user is first and last.
    """

    error_type = AlephAlphaError

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget) -> None:
        super().__init__(
            facts,
            budget=budget,
            stream_formatters=[AlephAlphaSseFormatter],
            document_formatter=AlephAlphaJsonFormatter,
        )

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, AlephAlphaBody)
        for name in REJECTED:
            if name in ignored:
                raise UnsupportedFeature("is not supported by this route", field=name)
        _check_order([message.role for message in body.messages])
        return self.parsed(payload, body.chat(), ignored)

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":"<cause>","code":"<kind>"}`."""
        return error_response(error)


def error_response(error: LMIError) -> Reply:
    """Render an error in the format of all Aleph Alpha routes."""
    status = entry_of(error, _STATUS, status_of(error))
    return Reply(status, error_document(error))


def _check_order(roles: list[str]) -> None:
    turns = roles[1:] if roles[:1] == ["system"] else roles
    expected = ["assistant" if place % 2 else "user" for place in range(len(turns))]
    if turns != expected or len(turns) % 2 == 0:
        raise InvalidRequest(
            "must be at most one system message, then user and assistant in turn, beginning and ending with user; "
            f"got {', '.join(roles[:20]) or 'none'}",
            field="messages",
        )


_STATUS: dict[type[LMIError], int] = {DeadlineExceeded: 408, QueueFull: 503}
