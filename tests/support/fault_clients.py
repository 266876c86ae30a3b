"""Well-behaved clients of several APIs. Each checks that its answer ends as the API specifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests


class Malformed(AssertionError):
    """The answer does not follow the API."""


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
        except requests.RequestException as error:
            raise Malformed(f"{self.path}: the connection failed: {error!r}") from error
        if answer.status_code == 200:
            text, complete = self._parse(self.read, answer.content)
            return Ending(text, complete, 200)
        if not 400 <= answer.status_code < 600 or not self._parse(self.error, json.loads(answer.content or b"{}")):
            raise Malformed(f"{self.path}: {answer.status_code} with {answer.content!r}")
        return Ending("", complete=False, status=answer.status_code)

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
    if any("generated_text" in record for record in tokens):
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


def _tgi_body(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"inputs": prompt, "parameters": {"max_new_tokens": max_tokens}}


APIS = [
    Api("/invocations", _tgi_body, lambda data: (json.loads(data)["generated_text"], True), lambda body: body["error"]),
    Api("/invocations", lambda *given: {**_tgi_body(*given), "stream": True}, _lmi_lines, lambda body: body["error"]),
    Api(
        "/v1/completions",
        lambda prompt, max_tokens: {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True},
        _completion_events,
        lambda body: body["error"]["message"],
    ),
    Api("/generate_stream", _tgi_body, _tgi_events, lambda body: body["error"]),
]
