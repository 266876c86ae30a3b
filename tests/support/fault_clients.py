"""Well-behaved clients of several APIs. Each checks that its answer ends as the API specifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests


class Malformed(AssertionError):
    """The answer does not follow the API."""


class Lost(Malformed):
    """The connection has ended before the answer."""


@dataclass(frozen=True)
class Ending:
    """How a request ended: the received text, and whether it is complete."""

    text: str
    complete: bool
    status: int


@dataclass(frozen=True)
class Api:
    """A route: how to request at most `max_tokens` tokens, and how to parse an answer with status 200."""

    path: str
    body: Callable[[str, int], dict[str, Any]]
    read: Callable[[bytes], tuple[str, bool]]
    error: Callable[[dict[str, Any]], object]

    def ask(self, url: str, prompt: str, max_tokens: int, timeout: float) -> Ending:
        """Send one request and read the whole answer. Raises `Malformed`."""
        try:
            answer = requests.post(url + self.path, json=self.body(prompt, max_tokens), timeout=timeout)
        except requests.Timeout as error:
            raise Malformed(f"{self.path}: no answer in time: {error!r}") from error
        except requests.RequestException as error:
            raise Lost(f"{self.path}: the connection failed: {error!r}") from error
        return self.ending(answer.status_code, answer.content)

    def ending(self, status: int, content: bytes) -> Ending:
        """Parse an answer. Raises `Malformed`."""
        if status == 200:
            text, complete = self._parse(self.read, content)
            return Ending(text, complete, 200)
        if not 400 <= status < 600 or not self._parse(self.error, json.loads(content or b"{}")):
            raise Malformed(f"{self.path}: {status} with {content!r}")
        return Ending("", complete=False, status=status)

    def _parse(self, read: Callable[[Any], Any], value: Any) -> Any:
        try:
            return read(value)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise Malformed(
                f"{self.path}: {error!r} in {value[-500:] if isinstance(value, bytes) else value!r}"
            ) from error


def _lmi_lines(data: bytes) -> tuple[str, bool]:
    if not data.endswith(b"\n"):
        raise ValueError("the last record has no newline")
    *tokens, last = [json.loads(line) for line in data.splitlines()]
    if any("generated_text" in record or "error_msg" in record["token"] for record in tokens):
        raise ValueError("more than one final record")
    failed = "error_msg" in last["token"]
    text = "".join(record["token"]["text"] for record in tokens)
    if not failed and not last["generated_text"].startswith(text):
        raise ValueError("generated_text does not begin with the tokens' texts")
    return last["generated_text"], not failed


def _events(data: bytes) -> list[str]:
    if not data.endswith(b"\n\n"):
        raise ValueError("the last event is incomplete")
    return [event.removeprefix("data:").strip() for event in data.decode().split("\n\n")[:-1] if event.strip()]


def _completion_events(data: bytes) -> tuple[str, bool]:
    *chunks, done = _events(data)
    if done != "[DONE]":
        raise ValueError("the stream does not end with [DONE]")
    records = [json.loads(chunk) for chunk in chunks]
    failed = "error" in records[-1]
    choices = [choice for record in (records[:-1] if failed else records) for choice in record["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    if len(reasons) != (0 if failed else 1):
        raise ValueError(f"finish reasons {reasons}")
    return "".join(choice["text"] for choice in choices), not failed


def _tgi_events(data: bytes) -> tuple[str, bool]:
    *tokens, last = [json.loads(event) for event in _events(data)]
    text = "".join(record["token"]["text"] for record in tokens)
    if "error" in last:
        return text, False
    return last["generated_text"], True


def _chat_chunks(records: list[dict[str, Any]]) -> tuple[str, bool]:
    failed = "error" in records[-1]
    choices = [choice for record in (records[:-1] if failed else records) for choice in record["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    if len(reasons) != (0 if failed else 1):
        raise ValueError(f"finish reasons {reasons}")
    return "".join(choice["delta"].get("content") or "" for choice in choices), not failed


def _chat_events(data: bytes) -> tuple[str, bool]:
    *chunks, done = _events(data)
    if done != "[DONE]":
        raise ValueError("the stream does not end with [DONE]")
    return _chat_chunks([json.loads(chunk) for chunk in chunks])


def _chat_lines(data: bytes) -> tuple[str, bool]:
    if not data.endswith(b"\n"):
        raise ValueError("the last record has no newline")
    return _chat_chunks([json.loads(line) for line in data.splitlines()])


def _named_events(data: bytes) -> list[dict[str, Any]]:
    """Events whose name stands in their document, too."""
    if not data.endswith(b"\n\n"):
        raise ValueError("the last event is incomplete")
    documents = []
    for event in data.decode().split("\n\n")[:-1]:
        name, _, document = event.partition("\n")
        documents.append(json.loads(document.removeprefix("data:")))
        if name.removeprefix("event:").strip() != documents[-1]["type"]:
            raise ValueError(f"{name} has type {documents[-1]['type']}")
    return documents


def _responses_events(data: bytes) -> tuple[str, bool]:
    documents = _named_events(data)
    if [document["sequence_number"] for document in documents] != list(range(len(documents))):
        raise ValueError("a sequence number is missing")
    text = "".join(one["delta"] for one in documents if one["type"] == "response.output_text.delta")
    last = documents[-1]["type"]
    if last not in ("response.completed", "response.incomplete", "response.failed"):
        raise ValueError(f"the stream ends with {last}")
    return text, last != "response.failed"


def _message_events(data: bytes) -> tuple[str, bool]:
    documents = _named_events(data)
    text = "".join(one["delta"]["text"] for one in documents if one["type"] == "content_block_delta")
    last = documents[-1]["type"]
    if last not in ("message_stop", "error"):
        raise ValueError(f"the stream ends with {last}")
    return text, last == "message_stop"


def _messages(prompt: str, limit: str, max_tokens: int, **fields: object) -> dict[str, Any]:
    return {
        "model": "m0",
        "messages": [{"role": "user", "content": prompt}],
        limit: max_tokens,
        "temperature": 0,
        **fields,
    }


def _tgi_body(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"inputs": prompt, "parameters": {"max_new_tokens": max_tokens}}


def _message(body: dict[str, Any]) -> object:
    return body["error"]["message"]


def _error(body: dict[str, Any]) -> object:
    return body["error"]


def _choice(data: bytes) -> dict[str, Any]:
    (choice,) = json.loads(data)["choices"]
    found: dict[str, Any] = choice
    return found


APIS = [
    Api("/invocations", _tgi_body, lambda data: (json.loads(data)["generated_text"], True), _error),
    Api("/invocations", lambda *given: {**_tgi_body(*given), "stream": True}, _lmi_lines, _error),
    Api(
        "/v1/completions",
        lambda prompt, max_tokens: {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True},
        _completion_events,
        _message,
    ),
    Api("/generate_stream", _tgi_body, _tgi_events, _error),
]
"""One for each framing: a document, JSON lines, OpenAI's events, TGI's."""

ALL_APIS = [
    *APIS,
    Api(
        "/v1/completions",
        lambda prompt, max_tokens: {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0},
        lambda data: (_choice(data)["text"], True),
        _message,
    ),
    Api("/generate", _tgi_body, lambda data: (json.loads(data)["generated_text"], True), _error),
    Api("/", lambda *given: {**_tgi_body(*given), "stream": True}, _tgi_events, _error),
    Api(
        "/invocations",
        lambda prompt, max_tokens: _messages(prompt, "max_tokens", max_tokens, stream=True),
        _chat_lines,
        _message,
    ),
    Api(
        "/v1/chat/completions",
        lambda prompt, max_tokens: _messages(prompt, "max_tokens", max_tokens),
        lambda data: (_choice(data)["message"]["content"], True),
        _message,
    ),
    Api(
        "/v1/chat/completions",
        lambda prompt, max_tokens: _messages(prompt, "max_tokens", max_tokens, stream=True),
        _chat_events,
        _message,
    ),
    Api(
        "/v1/responses",
        lambda prompt, max_tokens: {"input": prompt, "max_output_tokens": max_tokens, "temperature": 0, "stream": True},
        _responses_events,
        _message,
    ),
    Api(
        "/v1/messages",
        lambda prompt, max_tokens: _messages(prompt, "max_tokens", max_tokens),
        lambda data: ("".join(block["text"] for block in json.loads(data)["content"]), True),
        _message,
    ),
    Api(
        "/v1/messages",
        lambda prompt, max_tokens: _messages(prompt, "max_tokens", max_tokens, stream=True),
        _message_events,
        _message,
    ),
    Api(
        "/complete",
        lambda prompt, max_tokens: {"model": "m0", "prompt": prompt, "maximum_tokens": max_tokens, "temperature": 0},
        lambda data: (json.loads(data)["completions"][0]["completion"], True),
        _error,
    ),
    Api(
        "/chat/completions",
        lambda prompt, max_tokens: _messages(prompt, "maximum_tokens", max_tokens, stream=True),
        _chat_events,
        _error,
    ),
]
"""All APIs that generate text, with MindIE's at `/` if the server has `option.dialect=mindie` and TGI's otherwise."""
