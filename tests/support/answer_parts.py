"""The content of answers, read as clients of each API read them, and joined if an answer was continued."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class Shown:
    """What an answer, or a part of one, shows: its text, its reasoning, and `[name, arguments]` of each call.

    `continuation` is the token with which it goes on. `joins` is true if the pieces of its calls are to be joined.
    """

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: dict[int, list[str]] = {}
        self.continuation: str | None = None
        self.joins = False
        self._block = -1

    def add_call(self, index: int, name: str, arguments: str) -> None:
        call = self.calls.setdefault(index, ["", ""])
        call[0] += name
        call[1] += arguments

    @property
    def content(self) -> tuple[str, str, list[list[str]]]:
        return self.text, self.reasoning, list(self.calls.values())

    def read(self, record: Any) -> None:
        """Take a document, or a record of a stream."""
        if isinstance(record, list):
            (record,) = record
        self.continuation = _token(record) or self.continuation
        kind = record.get("type", "")
        if "choices" in record:
            for choice in record["choices"]:
                self._read_message(choice.get("delta") or choice.get("message") or {"content": choice.get("text")})
                self.joins |= "delta" in choice
        elif kind.startswith("response."):
            self._read_event(record)
        elif "output" in record:
            for item in record["output"]:
                self._read_item(item)
        elif kind in ("message", "content_block_start", "content_block_delta"):
            self._read_block(record)
        elif "completions" in record:
            self.text += record["completions"][0]["completion"]
        elif "token" in record:
            special = record["token"].get("special") or record["token"].get("special_token")
            self.text += "" if special else record["token"]["text"]
        elif "outputs" in record:
            self.text += record["outputs"][0]
        else:
            self.text += record.get("generated_text") or record.get("completion") or record.get("content") or ""

    def _read_message(self, message: dict[str, Any]) -> None:
        self.text += message.get("content") or ""
        self.reasoning += message.get("reasoning_content") or ""
        for place, call in enumerate(message.get("tool_calls") or []):
            function = call["function"]
            self.add_call(call.get("index", place), function.get("name", ""), function["arguments"])

    def _read_event(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.output_text.delta":
                self.text += event["delta"]
            case "response.reasoning_text.delta":
                self.reasoning += event["delta"]
            case "response.output_item.done" if event["item"]["type"] == "function_call":
                self._read_item(event["item"])

    def _read_item(self, item: dict[str, Any]) -> None:
        match item["type"]:
            case "function_call":
                self.add_call(len(self.calls), item["name"], item["arguments"])
            case "reasoning":
                self.reasoning += "".join(part["text"] for part in item["content"])
            case _:
                self.text += "".join(part["text"] for part in item["content"])

    def _read_block(self, record: dict[str, Any]) -> None:
        blocks = record.get("content") or [record.get("content_block") or record.get("delta") or {}]
        for block in blocks:
            self.text += block.get("text", "")
            self.reasoning += block.get("thinking", "")
            if block.get("type") == "tool_use":
                self._block = len(self.calls)
                self.add_call(self._block, block["name"], json.dumps(block["input"]) if block["input"] else "")
            if "partial_json" in block:
                self.add_call(self._block, "", block["partial_json"])


def shown(body: bytes) -> Shown:
    """Read the body of an answer: a document, events or JSON lines."""
    found = Shown()
    for record in records(body):
        found.read(record)
    return found


def records(body: bytes) -> Iterable[Any]:
    """Return the documents of an answer."""
    lines = [line.removeprefix(b"data: ").strip() for line in body.split(b"\n")]
    if body.startswith((b"data: ", b"event: ")) or b"\n{" in body.strip():
        return [json.loads(line) for line in lines if line.startswith(b"{")]
    return [json.loads(body)]


def joined(parts: Iterable[Shown]) -> tuple[str, str, list[list[str]]]:
    """Return what a client has of an answer in several parts: see docs/continuation.md."""
    whole = Shown()
    for part in parts:
        whole.text += part.text
        whole.reasoning += part.reasoning
        if not part.joins:
            whole.calls = {}
        for index, (name, arguments) in part.calls.items():
            whole.add_call(index, name, arguments)
    return whole.content


def _token(value: Any) -> str | None:
    """Return the token in a record, wherever it is."""
    if isinstance(value, dict):
        own = value.get("continuation")
        return own or next(filter(None, map(_token, value.values())), None)
    return next(filter(None, map(_token, value)), None) if isinstance(value, list) else None
