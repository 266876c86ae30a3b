"""Messages of a conversation in OpenAI's words, and what templates make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lmi_handlers.errors import InvalidRequest, UnsupportedFeature


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text in a message."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    """What an assistant refused with, in a history."""

    refusal: str


class ImageUrl(msgspec.Struct, frozen=True):
    """Where an image is."""

    url: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image in a message."""

    image_url: ImageUrl


Part = TextPart | RefusalPart | ImagePart


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def with_links(self, field: str) -> dict[str, Any]:
        """Return the message for a template, its images as Markdown, which is how TGI has them tokenised.

        `field` is its place in the body. Raises `InvalidRequest` where it says nothing.
        """
        return self._plain(field, _link)

    def text_only(self, field: str) -> dict[str, Any]:
        """The same. Raises `UnsupportedFeature` where it has an image."""
        return self._plain(field, _refuse)

    def _plain(self, field: str, render_image: Callable[[ImagePart, str], str]) -> dict[str, Any]:
        """Templates know one text; a call's arguments as an object; and no `developer`."""
        message: dict[str, Any] = msgspec.to_builtins(self)
        if self.content is None and not self.tool_calls:
            raise InvalidRequest("has neither content nor tool_calls", field=field)
        if not isinstance(self.content, str):
            parts = self.content or ()
            message["content"] = "".join(
                render_image(part, f"{field}.content") if isinstance(part, ImagePart) else _text(part) for part in parts
            )
        if self.role == "developer":
            message["role"] = "system"
        if self.tool_calls is not None:
            message["tool_calls"] = [_with_arguments(call) for call in self.tool_calls]
        return message


def _link(part: ImagePart, field: str) -> str:  # noqa: ARG001  as `_refuse`
    return f"![]({part.image_url.url})"


def _refuse(part: ImagePart, field: str) -> str:  # noqa: ARG001  as `_link`
    raise UnsupportedFeature("has an image, and this model takes text only", field=field)


def _text(part: TextPart | RefusalPart) -> str:
    return part.text if isinstance(part, TextPart) else part.refusal


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Read the arguments, which OpenAI sends as JSON text and models were trained on as objects."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}")
    except (msgspec.DecodeError, RecursionError):
        return call  # what a model wrote is not always JSON
    return call | {"function": function | {"arguments": arguments}}
