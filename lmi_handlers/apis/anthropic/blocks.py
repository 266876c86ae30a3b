"""The messages of Anthropic's bodies, and their conversion to chat messages.

The results of tools are blocks in a message of the user's; in a chat, each is a message of its own.

Source: Anthropic's API reference, "Messages".
"""

from __future__ import annotations

from typing import Any

import msgspec

from lmi_handlers.apis.openai.messages import ImagePart, ImageUrl, Message, Part, TextPart
from lmi_handlers.core.errors import InvalidRequest

BILLING_HEADER = "x-anthropic-billing-header"
"""Claude Code begins its system prompt with such a block. It differs between requests, which would spoil the prefix cache."""


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text. `citations` and `cache_control` are ignored, the latter in every block."""

    text: str

    def part(self) -> Part:
        return TextPart(self.text)


class Base64Source(msgspec.Struct, frozen=True, tag_field="type", tag="base64"):
    """An image file, in base64."""

    media_type: str
    data: str

    @property
    def location(self) -> str:
        """The image as a `data:` URL."""
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(msgspec.Struct, frozen=True, tag_field="type", tag="url"):
    """The place of an image."""

    url: str

    @property
    def location(self) -> str:
        return self.url


class InputImage(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    """An image. Files by `file_id` are not supported."""

    source: Base64Source | UrlSource

    def part(self) -> Part:
        return ImagePart(ImageUrl(self.source.location))


class InputThinking(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """The thoughts of the model. The signature is not checked."""

    thinking: str
    signature: str | None = None


class InputRedactedThinking(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Thoughts that nobody can read here. They are left out."""

    data: str


class InputToolUse(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A tool that the model called."""

    id: str
    name: str
    input: dict[str, Any]

    def call(self) -> dict[str, Any]:
        """Return the call as in a chat message, but with the arguments as an object, which templates expect."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.input}}


class InputToolResult(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result"):
    """The result of a tool. Chat templates know no `is_error`: the content tells."""

    tool_use_id: str
    content: str | list[InputText | InputImage] | None = None
    is_error: bool | None = None

    def message(self) -> Message:
        return Message("tool", _chat_content(self.content or ""), tool_call_id=self.tool_use_id)


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """Instructions in the middle of a conversation."""

    content: str | list[InputText]

    def chat(self, field: str) -> list[tuple[str, Message]]:
        return [(field, Message("system", system_text(self.content)))]


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """Content of the user, and results of tools."""

    content: str | list[InputText | InputImage | InputToolResult]

    def chat(self, field: str) -> list[tuple[str, Message]]:
        """Return the message, or several if it has the results of tools, each with its field."""
        if isinstance(self.content, str):
            return [(field, Message("user", self.content))]
        messages: list[tuple[str, Message]] = []
        parts: list[Part] = []
        for place, block in enumerate(self.content):
            if not isinstance(block, InputToolResult):
                parts.append(block.part())
                continue
            if parts:
                messages.append((field, Message("user", parts)))
                parts = []
            messages.append((f"{field}.content[{place}]", block.message()))
        return [*messages, (field, Message("user", parts))] if parts else messages


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """Content of the model. The answer continues it if it is the last message, and has no calls."""

    content: str | list[InputText | InputThinking | InputRedactedThinking | InputToolUse]

    def chat(self, field: str) -> list[tuple[str, Message]]:
        if isinstance(self.content, str):
            return [(field, Message("assistant", self.content))]
        texts = [block.text for block in self.content if isinstance(block, InputText)]
        thoughts = [block.thinking for block in self.content if isinstance(block, InputThinking)]
        calls = [block.call() for block in self.content if isinstance(block, InputToolUse)]
        message = Message(
            "assistant",
            "".join(texts) if texts else None,
            tool_calls=calls or None,
            reasoning_content="".join(thoughts) or None,
        )
        return [(field, message)] if texts or calls or thoughts else []


InputMessage = UserMessage | AssistantMessage | SystemMessage


def system_text(content: str | list[InputText]) -> str:
    """Return a system prompt as one text."""
    texts = [content] if isinstance(content, str) else [block.text for block in content]
    return "\n".join(text for text in texts if not text.startswith(BILLING_HEADER))


def conversation(
    system: str | list[InputText] | None, given: list[InputMessage], *, system_first: bool
) -> list[tuple[str, Message]]:
    """Return the messages of the chat, each with its field. Raises `InvalidRequest` if there are none.

    With `system_first`, all instructions are in one message, before the others.
    """
    texts, messages = [system_text(system or "")], []
    for place, message in enumerate(given):
        if system_first and isinstance(message, SystemMessage):
            texts.append(system_text(message.content))
        else:
            messages += message.chat(f"messages[{place}]")
    if not messages:
        raise InvalidRequest("must not be empty", field="messages")
    text = "\n".join(filter(None, texts))
    return [("system", Message("system", text)), *messages] if text else messages


def _chat_content(content: str | list[InputText | InputImage]) -> str | list[Part]:
    return content if isinstance(content, str) else [block.part() for block in content]
