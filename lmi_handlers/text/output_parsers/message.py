"""A message as it is generated, the interface of the parsers that read it, and the two simplest parsers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec


class ToolCallDelta(msgspec.Struct, frozen=True):
    """An addition to a tool call.

    `index` counts the calls of a message from 0. Only a call's first delta has the `name`. `arguments` is the next
    piece of the JSON text of the arguments. It is what the model wrote, so it may not be valid JSON.
    """

    index: int
    name: str | None = None
    arguments: str = ""


class MessageDelta(msgspec.Struct, frozen=True):
    """An addition to a message.

    The reasoning comes before the content and the calls. Calls are in the written order.
    """

    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    reasoning: str = ""

    def __add__(self, later: MessageDelta) -> MessageDelta:
        return MessageDelta(
            self.content + later.content, self.tool_calls + later.tool_calls, self.reasoning + later.reasoning
        )


class MessageParser(ABC):
    """Parses the text of one message.

    The text contains special tokens as literal text, except for the final one. The joined deltas do not depend on how
    the text was split into pieces. Parsing takes linear time and never raises.
    """

    openings: tuple[str, ...] = ()
    """The marks before calls, which have no other use."""

    @abstractmethod
    def feed(self, text: str) -> MessageDelta:
        """Take more text and return everything new that is now certain."""

    @abstractmethod
    def finish(self) -> MessageDelta:
        """Return what was held back, at the end of the text. An incomplete call keeps the part that was read."""


class PlainParser(MessageParser):
    """For messages without calls. All text is content."""

    def feed(self, text: str) -> MessageDelta:
        return MessageDelta(content=text)

    def finish(self) -> MessageDelta:
        """Return nothing, because nothing was held back."""
        return MessageDelta()


class NamedCallParser(MessageParser):
    """For a single call of the function `name`.

    A grammar makes the text its arguments, such as `{"location": "Paris"}`.
    """

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> MessageDelta:
        name, self._name = self._name, None
        return MessageDelta(tool_calls=(ToolCallDelta(0, name, text),) if name or text else ())

    def finish(self) -> MessageDelta:
        """Return the call if there was no text at all."""
        return self.feed("")
