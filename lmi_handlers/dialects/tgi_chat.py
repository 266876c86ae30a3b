"""The part of TGI's chat body that makes a prompt: messages and tools."""

from __future__ import annotations

from typing import Any

import msgspec

from lmi_handlers.dialects.base import Payload, conversion_error, decode_json


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text in a message."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True):
    """Where an image is."""

    url: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image in a message. It reads as Markdown; nothing here fetches it."""

    image_url: ImageUrl


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation, in OpenAI's words."""

    role: str
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the message as templates know it, its content one text."""
        message: dict[str, Any] = {"content": None, **msgspec.to_builtins(self)}
        if isinstance(self.content, list):
            message["content"] = "".join(
                part.text if isinstance(part, TextPart) else f"![]({part.image_url.url})" for part in self.content
            )
        return message


class ChatBody(msgspec.Struct, frozen=True):
    """The body of `/chat_tokenize`: a chat request, of which only these fields make the prompt."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None

    def plain_messages(self) -> list[dict[str, Any]]:
        """Return the messages for a template."""
        return [message.plain() for message in self.messages]


def decode_chat(payload: Payload) -> ChatBody:
    """Return the body. Raises `InvalidJson` or `InvalidBody`."""
    value = decode_json(payload.data)
    try:
        return msgspec.convert(value, ChatBody)
    except msgspec.ValidationError as error:
        raise conversion_error(error) from error
