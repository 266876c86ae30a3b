"""The input items of OpenAI's responses, and their conversion to chat messages.

An assistant's turn in a chat is one message; in responses, its reasoning, its text and each of its calls are items.

Source: OpenAI's API reference, "Responses".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.openai.messages import ImagePart, ImageUrl, Message, Part, RefusalPart, TextPart
from lmi_handlers.core.errors import UnsupportedFeature


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    """A piece of text."""

    text: str

    def part(self) -> Part:
        return TextPart(self.text)


class AssistantText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """A piece of text that the model generated."""

    text: str

    def part(self) -> Part:
        return TextPart(self.text)


class InputImage(msgspec.Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image. `detail` is ignored; files by `file_id` are not supported."""

    image_url: str

    def part(self) -> Part:
        return ImagePart(ImageUrl(self.image_url))


class InputRefusal(RefusalPart, frozen=True, tag_field="type", tag="refusal"):
    """An assistant's refusal earlier in the conversation."""

    def part(self) -> Part:
        return self


Content = str | list[InputText | AssistantText | InputImage | InputRefusal]


class InputMessage(msgspec.Struct, frozen=True):
    """A message. An assistant's last one is continued if its `status` is `in_progress` or `incomplete`."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    type: Literal["message"] | None = None
    status: str | None = None


class ReasoningPart(msgspec.Struct, frozen=True):
    """A piece of reasoning, or of its summary."""

    text: str


class InputReasoning(msgspec.Struct, frozen=True):
    """The thoughts of the model. `encrypted_content` is ignored; the summary counts if there is no `content`."""

    type: Literal["reasoning"]
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content or self.summary or ())


class InputCall(msgspec.Struct, frozen=True):
    """A function that the model called. `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def plain(self) -> dict[str, Any]:
        """Return the call as in a chat message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class InputCallOutput(msgspec.Struct, frozen=True):
    """The result of the function."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


Item = InputMessage | InputReasoning | InputCall | InputCallOutput

ITEMS: Mapping[str, type[Item]] = {
    "message": InputMessage,
    "reasoning": InputReasoning,
    "function_call": InputCall,
    "function_call_output": InputCallOutput,
}
"""By `type`."""

Kind = TypeVar("Kind")


class _Typed(msgspec.Struct):
    type: str | None = None


def decode_by_type(value: msgspec.Raw, field: str, kinds: Mapping[str, type[Kind]], default: str) -> Kind:
    """Decode an object as one of `kinds`, which its `type` names. msgspec cannot, because a `type` may be absent.

    Raises `InvalidBody`, or `UnsupportedFeature` if there is no such kind.
    """
    name = decode_typed(value, _Typed, prefix=field).type or default
    if name not in kinds:
        raise UnsupportedFeature(
            f"{name[:100]!r} is not supported; supported: {', '.join(kinds)}", field=f"{field}.type"
        )
    return decode_typed(value, kinds[name], prefix=field)


def conversation(items: list[Item]) -> list[tuple[str, Message]]:
    """Return the messages, each with the field of the item that it begins with.

    Reasoning without text is dropped.
    """
    turns: list[_Turn] = []
    for position, item in enumerate(items):
        turn = turns[-1] if turns else None
        if turn is None or not turn.takes(item):
            turn = _Turn(f"input[{position}]")
            turns.append(turn)
        turn.add(item)
    return [(turn.field, turn.message()) for turn in turns if not turn.is_empty]


def continues(items: list[Item]) -> bool:
    """True if the answer continues the last item."""
    last = items[-1]
    return isinstance(last, InputMessage) and last.role == "assistant" and last.status in ("in_progress", "incomplete")


class _Turn:
    """One message of the chat, made of one or more items of which the first is at `field`."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._role = ""
        self._content: str | list[Part] | None = None
        self._reasoning = ""
        self._calls: list[dict[str, Any]] = []
        self._call_id: str | None = None

    def takes(self, item: Item) -> bool:
        """True if the item is part of this turn: reasoning, then calls and a text before, between or after them."""
        if self._role != "assistant" or self._call_id is not None:
            return False
        match item:
            case InputCall():
                return True
            case InputReasoning():
                return self._content is None and not self._calls
        return self._content is None and _by_assistant(item)

    def add(self, item: Item) -> None:
        self._role = "assistant"
        match item:
            case InputMessage():
                self._role = item.role
                self._content = _chat_content(item.content)
            case InputReasoning():
                self._reasoning += item.text
            case InputCall():
                self._calls.append(item.plain())
            case InputCallOutput():
                self._role = "tool"
                self._content, self._call_id = _chat_content(item.output), item.call_id

    @property
    def is_empty(self) -> bool:
        return self._content is None and not self._calls and not self._reasoning

    def message(self) -> Message:
        return Message(
            self._role,
            self._content,
            tool_calls=self._calls or None,
            tool_call_id=self._call_id,
            reasoning_content=self._reasoning or None,
        )


def _by_assistant(item: Item) -> bool:
    return isinstance(item, InputMessage) and item.role == "assistant"


def _chat_content(content: Content) -> str | list[Part]:
    return content if isinstance(content, str) else [part.part() for part in content]
