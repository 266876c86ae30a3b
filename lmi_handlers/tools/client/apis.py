"""The APIs in which the tools ask: the path and the body of a request, and the meaning of each record of an answer.

A new API is a row of `APIS`, with its functions, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lmi_handlers.tools.client.errors import AnswerFailed

DEFAULT_LIMIT = 512
"""Tokens of an answer in APIs whose own default is too short for a chat, such as LMI's 30."""

_REASONING_EVENTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_MESSAGES = ("message", "message_start", "content_block_delta", "message_delta")
"""The types of Anthropic's records that have something to read."""

_TEXTS = ("generated_text", "completion", "translation_text", "summary_text", "text")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request, in any API. An API reads either `messages`, as OpenAI writes them, or `prompt`.

    `limit` is the maximum number of tokens in the answer, None for the API's default. `parameters` have the API's names.
    """

    messages: Sequence[Mapping[str, str]]
    prompt: str = ""
    model: str = ""
    limit: int | None = None
    parameters: Mapping[str, Any] = {}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one record: a whole answer, or a line or an event of a stream.

    `text` is None if the record has no place for text. `special` is the text of a special token, which is not part of
    the answer. Counts are those of the whole answer, and None if the record has none. With `continuation`, a request
    continues an answer that a time limit has ended.
    """

    text: str | None = None
    reasoning: str = ""
    special: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    continuation: str | None = None


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """The requests for a stream of an API, and the reader of its records. `read` returns None for records of other APIs.

    `stop` is the name of the parameter with texts that end an answer. `on_endpoints` is true if SageMaker's only route,
    `/invocations`, knows the API's bodies. `measured` are the parameters with which answers are greedy and tell their
    numbers of tokens. `ignores_eos` is true if the API has the parameter `ignore_eos`.
    """

    path: str
    body: Callable[[Question], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], Said | None]
    takes_messages: bool = True
    stop: str = "stop"
    on_endpoints: bool = True
    measured: Mapping[str, Any] = {}
    ignores_eos: bool = False


def said(record: Any) -> Said:
    """Return what a record of any API says. Raises `AnswerFailed` if that is an error."""
    if not isinstance(record, list):
        return _said(record)
    items = [_said(item) for item in record]
    token = items[0].continuation if len(items) == 1 else None  # of several answers, none has a token
    return Said(text=_joined(item.text for item in items), continuation=token)


def _said(record: Any) -> Said:
    if not isinstance(record, Mapping):
        return Said()
    if (error := error_in(record)) is not None:
        raise AnswerFailed(error)
    found = next((found for read in _READERS if (found := read(record)) is not None), Said())
    token = continuation_in(record)
    return found if token is None else msgspec.structs.replace(found, continuation=token)


def continuation_in(record: Mapping[str, Any]) -> str | None:
    """Return the token in a record of any API with which a request continues the answer."""
    choices = record.get("choices")
    nested = [record.get(name) for name in ("details", "response", "delta")]
    places = (record, *nested, *(choices[:1] if isinstance(choices, list) else ()))
    return next((token for place in places if (token := _string(_mapping(place).get("continuation")))), None)


def error_in(record: Mapping[str, Any]) -> str | None:
    """Return the cause if a record of any API says that generation failed."""
    failed = record.get("response") if record.get("type") == "response.failed" else record  # OpenAI's responses
    error = failed.get("error") if isinstance(failed, Mapping) else None
    details = record.get("details")
    if isinstance(error, Mapping):
        return str(error.get("message") or error)
    if isinstance(error, str):
        return error
    if record.get("type") in ("error", "response.failed"):
        return str(record.get("message") or "generation failed")
    if isinstance(details, Mapping) and details.get("finish_reason") == "error":
        token = record.get("token")
        return str((token.get("error_msg") if isinstance(token, Mapping) else None) or "generation failed")
    return None


# OpenAI


def _chat(question: Question) -> dict[str, Any]:
    return {"messages": question.messages, **_named(question), **_limit("max_tokens", question)}


def _completion(question: Question) -> dict[str, Any]:
    return {"prompt": question.prompt, **_named(question), "max_tokens": question.limit or DEFAULT_LIMIT}


def _response(question: Question) -> dict[str, Any]:
    system = [message["content"] for message in question.messages if message["role"] == "system"]
    return {
        "input": [message for message in question.messages if message["role"] != "system"],
        **({"instructions": "\n".join(system)} if system else {}),
        **_named(question),
        "store": False,
        **_limit("max_output_tokens", question),
    }


def _named(question: Question) -> dict[str, Any]:
    return {**_model(question), "stream": True, **question.parameters}


def _model(question: Question) -> dict[str, str]:
    return {"model": question.model} if question.model else {}


def _limit(name: str, question: Question) -> dict[str, int]:
    return {} if question.limit is None else {name: question.limit}


def _read_choices(record: Mapping[str, Any]) -> Said | None:
    if not isinstance(record.get("choices"), list):
        return None
    choices = [choice for choice in record["choices"] if isinstance(choice, Mapping)]
    messages = [choice.get("delta") or choice.get("message") for choice in choices]
    usage = _mapping(record.get("usage"))
    return Said(
        text=_joined(map(_text_of_choice, choices)),
        reasoning="".join(
            # Other servers call it `reasoning`.
            _string(message.get("reasoning_content") or message.get("reasoning")) or ""
            for message in messages
            if isinstance(message, Mapping)
        ),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _text_of_choice(choice: Mapping[str, Any]) -> str | None:
    for key in ("delta", "message"):
        if isinstance(inner := choice.get(key), Mapping):
            return _string(inner.get("content"))
    return _string(choice.get("text"))


def _read_response(record: Mapping[str, Any]) -> Said | None:
    kind = record.get("type")
    if isinstance(kind, str) and kind.startswith("response."):
        delta = _string(record.get("delta"))
        usage = _mapping(_mapping(record.get("response")).get("usage"))
        return Said(
            text=delta if kind == "response.output_text.delta" else None,
            reasoning=delta or "" if kind in _REASONING_EVENTS else "",
            prompt_tokens=_count(usage.get("input_tokens")),
            output_tokens=_count(usage.get("output_tokens")),
        )
    if not isinstance(record.get("output"), list):
        return None
    items = [item for item in record["output"] if isinstance(item, Mapping)]
    reasoning = [text for item in items if item.get("type") == "reasoning" for text in _parts(item)]
    return Said(
        text=_joined(text for item in items if item.get("type") != "reasoning" for text in _parts(item)),
        reasoning="".join(text for text in reasoning if text is not None),
    )


def _parts(item: Mapping[str, Any]) -> list[str | None]:
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    return [_string(part.get("text")) for part in parts if isinstance(part, Mapping)]


# LMI, TGI and MindIE


def _inputs(question: Question) -> dict[str, Any]:
    limit = {"max_new_tokens": question.limit or DEFAULT_LIMIT}
    # The model is one of several; others ignore it.
    return {
        **_model(question),
        "inputs": question.prompt,
        "stream": True,
        "parameters": {**question.parameters, **limit},
    }


def _read_token(record: Mapping[str, Any]) -> Said | None:
    token = record.get("token")
    if isinstance(token, Mapping):  # the last record repeats the whole text
        text = _string(token.get("text"))
    else:
        text = next((found for key in _TEXTS if (found := _string(record.get(key))) is not None), None)
        if text is None:
            return None
    is_special = isinstance(token, Mapping) and token.get("special") is True
    details = _mapping(record.get("details"))
    return Said(
        text=None if is_special else text,
        special=text or "" if is_special else "",
        prompt_tokens=_count(details.get("input_length", details.get("prompt_tokens"))),
        output_tokens=_count(details.get("generated_tokens")),
    )


# Aleph Alpha


def _aleph_alpha(question: Question) -> dict[str, Any]:
    limit = _limit("maximum_tokens", question)
    return {"model": question.model, "messages": question.messages, **_named(question), **limit}


def _read_aleph_alpha(record: Mapping[str, Any]) -> Said | None:
    if isinstance(completions := record.get("completions"), list):
        return Said(text=_joined(_string(item.get("completion")) for item in completions if isinstance(item, Mapping)))
    return _read_choices(record)


# Anthropic


def _anthropic(question: Question) -> dict[str, Any]:
    system = [message["content"] for message in question.messages if message["role"] == "system"]
    return {
        "messages": [message for message in question.messages if message["role"] != "system"],
        **({"system": "\n".join(system)} if system else {}),
        **_named(question),
        "max_tokens": question.limit or DEFAULT_LIMIT,
    }


def _read_message(record: Mapping[str, Any]) -> Said | None:
    kind = record.get("type")
    if kind not in _MESSAGES:
        return None
    content = [record.get("delta")] if kind == "content_block_delta" else record.get("content")
    blocks = [_mapping(block) for block in content] if isinstance(content, list) else []
    usage = _mapping(record.get("usage"))  # the first event's is not the whole answer's
    prompt = [_count(usage.get(name)) for name in ("input_tokens", "cache_read_input_tokens")]
    return Said(
        text=_joined(_string(block.get("text")) for block in blocks),
        reasoning="".join(_string(block.get("thinking")) or "" for block in blocks),
        prompt_tokens=None if prompt[0] is None else prompt[0] + (prompt[1] or 0),
        output_tokens=_count(usage.get("output_tokens")),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _joined(found: Iterable[str | None]) -> str | None:
    kept = [text for text in found if text is not None]
    return "\n".join(kept) if kept else None


_MOST_TOKENS = 2**53
"""More is a mistake of the server, with which no figure can be computed."""

APIS: Mapping[str, Api] = {
    "openai-chat": Api(
        path="/v1/chat/completions",
        body=_chat,
        read=_read_choices,
        measured={"temperature": 0, "stream_options": {"include_usage": True}},
        ignores_eos=True,
    ),
    "responses": Api(
        path="/v1/responses", body=_response, read=_read_response, on_endpoints=False, measured={"temperature": 0}
    ),
    "openai": Api(
        path="/v1/completions",
        body=_completion,
        read=_read_choices,
        takes_messages=False,
        measured={"temperature": 0, "stream_options": {"include_usage": True}},
        ignores_eos=True,
    ),
    "lmi": Api(
        path="/invocations",
        body=_inputs,
        read=_read_token,
        takes_messages=False,
        stop="stop_sequences",
        measured={"details": True},
        ignores_eos=True,
    ),
    "tgi": Api(
        path="/generate_stream", body=_inputs, read=_read_token, takes_messages=False, measured={"details": True}
    ),
    "mindie": Api(path="/", body=_inputs, read=_read_token, takes_messages=False, measured={"details": True}),
    "aleph-alpha": Api(path="/chat/completions", body=_aleph_alpha, read=_read_aleph_alpha, on_endpoints=False),
    "anthropic": Api(
        path="/v1/messages",
        body=_anthropic,
        read=_read_message,
        stop="stop_sequences",
        on_endpoints=False,
        measured={"temperature": 0},
    ),
}

_READERS = tuple(dict.fromkeys(api.read for api in APIS.values()))
