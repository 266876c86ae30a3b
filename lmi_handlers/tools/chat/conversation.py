"""The turns of a chat, and the parameters of its requests."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError

LIMITS = ("max_new_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens", "maximum_tokens")
"""The names of the largest number of tokens in an answer. Each API has its own; here they mean the same."""

_OURS = ("messages", "inputs", "input", "instructions", "prompt", "model", "parameters", "stream", "stream_options")


class Message(msgspec.Struct, frozen=True):
    """One turn. `role` is "user" or "assistant"."""

    role: str
    content: str


class Conversation:
    """The turns so far, the system prompt, and the parameters that were set. `limit` is None unless it was set."""

    def __init__(self, *, model: str = "", system: str | None = None) -> None:
        self.model = model
        self.system = system
        self.turns: list[Message] = []
        self.limit: int | None = None
        self.parameters: dict[str, Any] = {}

    @property
    def messages(self) -> list[dict[str, str]]:
        """All turns as OpenAI writes them, beginning with the system prompt."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return system + [msgspec.to_builtins(turn) for turn in self.turns]

    def say(self, role: str, content: str) -> None:
        """Add a turn."""
        self.turns.append(Message(role, content))

    def take_back(self) -> str | None:
        """Remove the last question, with its answer, and return it. Returns None if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn.role == "user":
                return turn.content
        return None

    def set(self, name: str, value: Any) -> None:
        """Set a parameter of all further requests, or remove it if `value` is None. Raises `ConfigError`."""
        if name in _OURS:
            raise ConfigError(f"{name} is not a parameter: the chat itself sets it")
        if name in LIMITS:
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name} must be an integer of at least 1, got {json.dumps(value)[:100]}")
            self.limit = value
        elif value is None:
            self.parameters.pop(name, None)
        else:
            self.parameters[name] = value


def parse_setting(text: str, separator: str | None) -> tuple[str, Any]:
    """Read `NAME=VALUE`, or `NAME VALUE` if `separator` is None. The value is JSON, or else a text.

    Without a value, or with null, it is None. Raises `ConfigError`.
    """
    name, *rest = (part.strip() for part in text.split(separator, 1))
    if not name:
        raise ConfigError(f"{text!r} has no name")
    if not rest or not rest[0]:
        return name, None
    try:
        return name, msgspec.json.decode(rest[0])
    except (msgspec.DecodeError, RecursionError):
        return name, rest[0]
