"""The body of a conversation in each API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lmi_handlers.tools.chat.conversation import Conversation

DEFAULT_LIMIT = 512
"""Tokens of an answer in APIs whose own default is too short for a chat, such as LMI's 30."""

_TRANSCRIPT_END = "\nUser:"


class ChatApi(msgspec.Struct, frozen=True, kw_only=True):
    """How an API is asked. `body` gets the conversation and its text; the text is empty if the API takes messages.

    `stop` is the name of the parameter with texts that end an answer. `on_endpoints` is true if SageMaker's only route,
    `/invocations`, knows the API's bodies.
    """

    path: str
    body: Callable[[Conversation, str], dict[str, Any]]
    takes_messages: bool = True
    stop: str = "stop"
    on_endpoints: bool = True


def transcript(conversation: Conversation) -> str:
    """Return the text of a conversation for a model without a chat template."""
    system = [] if conversation.system is None else [f"{conversation.system}\n"]
    turns = [
        # TGI's answers include what ended them.
        f"{'User' if turn.role == 'user' else 'Assistant'}: {turn.content.removesuffix(_TRANSCRIPT_END)}"
        for turn in conversation.turns
    ]
    return "\n".join([*system, *turns, "Assistant:"])


def with_transcript_end(api: ChatApi, body: dict[str, Any]) -> dict[str, Any]:
    """Make an answer to a transcript end where the model goes on with the user's part."""
    inner = body.get("parameters", body)
    inner.setdefault(api.stop, [_TRANSCRIPT_END])
    return body


def _named(conversation: Conversation) -> dict[str, Any]:
    model = {"model": conversation.model} if conversation.model else {}
    return {**model, "stream": True, **conversation.parameters}


def _limit(name: str, limit: int | None) -> dict[str, int]:
    return {} if limit is None else {name: limit}


def _chat(conversation: Conversation, _: str) -> dict[str, Any]:
    return {"messages": conversation.messages, **_named(conversation), **_limit("max_tokens", conversation.limit)}


def _responses(conversation: Conversation, _: str) -> dict[str, Any]:
    turns = [msgspec.to_builtins(turn) for turn in conversation.turns]
    instructions = {} if conversation.system is None else {"instructions": conversation.system}
    limit = _limit("max_output_tokens", conversation.limit)
    return {"input": turns, **instructions, **_named(conversation), "store": False, **limit}


def _completion(conversation: Conversation, text: str) -> dict[str, Any]:
    return {"prompt": text, **_named(conversation), "max_tokens": conversation.limit or DEFAULT_LIMIT}


def _inputs(conversation: Conversation, text: str) -> dict[str, Any]:
    limit = {"max_new_tokens": conversation.limit or DEFAULT_LIMIT}
    model = {"model": conversation.model} if conversation.model else {}  # which of several models; others ignore it
    return {**model, "inputs": text, "stream": True, "parameters": conversation.parameters | limit}


def _aleph_alpha(conversation: Conversation, _: str) -> dict[str, Any]:
    limit = _limit("maximum_tokens", conversation.limit)
    return {"model": conversation.model, "messages": conversation.messages, **_named(conversation), **limit}


APIS: Mapping[str, ChatApi] = {
    "openai-chat": ChatApi(path="/v1/chat/completions", body=_chat),
    "responses": ChatApi(path="/v1/responses", body=_responses, on_endpoints=False),
    "openai": ChatApi(path="/v1/completions", body=_completion, takes_messages=False),
    "lmi": ChatApi(path="/invocations", body=_inputs, takes_messages=False, stop="stop_sequences"),
    "tgi": ChatApi(path="/generate_stream", body=_inputs, takes_messages=False),
    "mindie": ChatApi(path="/", body=_inputs, takes_messages=False),
    "aleph-alpha": ChatApi(path="/chat/completions", body=_aleph_alpha, on_endpoints=False),
}
"""Their answers are read by `deploy.answer_text`."""
