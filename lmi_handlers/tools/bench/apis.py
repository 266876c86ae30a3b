"""The streaming requests of each API, and what their events say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

DONE = b"[DONE]"


class Sent(msgspec.Struct, frozen=True):
    """One request's prompt, the number of tokens that are to be generated, and the model's name."""

    prompt: str
    output_tokens: int
    model: str
    ignore_eos: bool


class Event(msgspec.Struct, frozen=True):
    """What one event of a stream says. Counts are None if it has none; they are those of the whole answer."""

    text: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None


class StreamingApi(msgspec.Struct, frozen=True):
    """How an API is asked for a stream. Every document in an answer, one per line or event, is passed to `read`."""

    path: str
    body: Callable[[Sent], Mapping[str, Any]]
    read: Callable[[dict[str, Any]], Event]


def _chat(sent: Sent) -> dict[str, Any]:
    messages = [{"role": "user", "content": sent.prompt}]
    return _openai(sent) | {"messages": messages, "max_completion_tokens": sent.output_tokens}


def _completion(sent: Sent) -> dict[str, Any]:
    return _openai(sent) | {"prompt": sent.prompt, "max_tokens": sent.output_tokens}


def _openai(sent: Sent) -> dict[str, Any]:
    body = {"model": sent.model, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return body | ({"ignore_eos": True} if sent.ignore_eos else {})


def _lmi(sent: Sent) -> dict[str, Any]:
    parameters = {"max_new_tokens": sent.output_tokens, "details": True}
    if sent.ignore_eos:
        parameters["ignore_eos"] = True
    return {"inputs": sent.prompt, "stream": True, "parameters": parameters}


def _tgi(sent: Sent) -> dict[str, Any]:
    return {
        "inputs": sent.prompt,
        "stream": True,
        "parameters": {"max_new_tokens": sent.output_tokens, "details": True},
    }


def _aleph_alpha(sent: Sent) -> dict[str, Any]:
    messages = [{"role": "user", "content": sent.prompt}]
    return {"model": sent.model, "messages": messages, "maximum_tokens": sent.output_tokens, "stream": True}


def _read_openai(document: dict[str, Any]) -> Event:
    usage = document.get("usage") or {}
    text = ""
    for choice in document.get("choices") or ():
        delta = choice.get("delta") or choice
        text += "".join(delta.get(name) or "" for name in ("reasoning_content", "reasoning", "content", "text"))
    return Event(text, usage.get("prompt_tokens"), usage.get("completion_tokens"), _error(document))


def _read_tokens(document: dict[str, Any]) -> Event:
    """Read an event of LMI, TGI or MindIE."""
    details = document.get("details") or {}
    token = document.get("token") or {}
    failed = details.get("finish_reason") == "error"
    return Event(
        token.get("text") or "",
        details.get("input_length", details.get("prompt_tokens")),
        details.get("generated_tokens"),
        _error(document) or ("the stream ended with an error" if failed else None),
    )


def _error(document: dict[str, Any]) -> str | None:
    error = document.get("error") or document.get("error_msg")
    if isinstance(error, dict):
        error = error.get("message")
    return None if error is None else str(error)


APIS: Mapping[str, StreamingApi] = {
    "openai-chat": StreamingApi("/v1/chat/completions", _chat, _read_openai),
    "openai": StreamingApi("/v1/completions", _completion, _read_openai),
    "lmi": StreamingApi("/invocations", _lmi, _read_tokens),
    "tgi": StreamingApi("/generate_stream", _tgi, _read_tokens),
    "mindie": StreamingApi("/", _tgi, _read_tokens),
    "aleph-alpha": StreamingApi("/chat/completions", _aleph_alpha, _read_openai),
}


def read_line(api: StreamingApi, line: bytes) -> Event | None:
    """Read a line of server-sent events or JSON lines. Returns None if there is no document in it.

    Raises `msgspec.DecodeError` if it is not JSON.
    """
    if line.startswith(b"data:"):
        line = line[5:]
    elif not line.startswith(b"{"):  # an event's name, a comment or an empty line
        return None
    line = line.strip()
    if not line or line == DONE:
        return None
    document = msgspec.json.decode(line)
    return api.read(document) if isinstance(document, dict) else None
