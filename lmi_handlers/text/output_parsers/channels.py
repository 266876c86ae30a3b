"""Reads answers that are messages with headers, of families whose headers say what a message is: reasoning, text or calls.

Inkling has a mark for each kind, after a header that names the function:

    <|message_model|><|content_thinking|>Let me look.<|end_message|>
    <|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {"a": 1}}<|end_message|>
    <|message_model|><|content_text|>Here you are.<|end_message|>

MuseGlimmer has recipients:

    <|start|>assistant to=self<|message|>Let me look.<|eom|>
    <|start|>assistant to=f<|message|><atem:function_calls>..</atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>Here you are.<|eot|>

The prompt ends with the start of the first header, or in the middle of a message that is to be continued. gpt-oss has
channels, too, and more ways to write a header (`harmony`).

Sources: vLLM's parsers of these names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from lmi_handlers.text.output_parsers.cursor import start_of_a_mark
from lmi_handlers.text.output_parsers.message import MessageDelta, MessageParser, PlainParser, ToolCallDelta
from lmi_handlers.text.output_parsers.tool_calls import TaggedCallParser

Kind = Literal["reasoning", "content", "call"]


class Channels(msgspec.Struct, frozen=True):
    """The marks of a family. `header` begins a header, one of `bodies` ends it, and one of `ends` ends the message.

    `bodies` has the kind of message by the mark. If the kind is None, the header's recipient says it. Calls are read with
    the marks around them if they are `marked`.
    """

    header: str
    bodies: Mapping[str, Kind | None]
    ends: tuple[str, ...]
    marked: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.header, *self.bodies, *self.ends)


INKLING = Channels(
    "<|message_model|>",
    {
        "<|content_thinking|>": "reasoning",
        "<|content_text|>": "content",
        "<|content_invoke_tool_json|>": "call",
        "<|content_invoke_tool_text|>": "content",
        "<|content_tool_error|>": "content",
    },
    ("<|end_message|>", "<|content_model_end_sampling|>"),
    marked=True,
)
MUSE_GLIMMER = Channels("<|start|>", {"<|message|>": None}, ("<|eom|>", "<|eot|>"))

_LONGEST_HEADER = 1024
"""In characters. The rest of a longer header is dropped."""

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_KINDS: Mapping[str, Kind] = {"self": "reasoning", "user": "content"}


class ChannelParser(MessageParser):
    """Splits messages into reasoning and content, and gives those with calls to `parser`. A plain one takes them as content.

    Messages of one kind are joined with line breaks. Text outside any message is content.
    """

    def __init__(self, channels: Channels, prompt: str, parser: MessageParser) -> None:
        self._channels = channels
        self._parser = parser
        self._calls = not isinstance(parser, PlainParser)
        self._names = parser.names if isinstance(parser, TaggedCallParser) else frozenset()
        self._mark = re.compile("|".join(map(re.escape, channels.marks)))
        self._rest = ""  # perhaps the start of a mark
        self._header: str | None = None  # while a header is read
        self._kind: Kind | None = None  # None between messages
        self._written: set[Kind] = set()  # the kinds that have text already
        self._breaks = False  # a new message has begun
        _, begins, last = prompt.rpartition(channels.header)
        if begins:
            self._read(begins + last)

    def feed(self, text: str) -> MessageDelta:
        """Take more text and return what it adds to the message."""
        text = self._rest + text
        held = start_of_a_mark(text, self._channels.marks)
        self._rest = text[len(text) - held :]
        return self._read(text[: len(text) - held])

    def finish(self) -> MessageDelta:
        """Return what was held back, here and by the parser of calls."""
        rest, self._rest = self._rest, ""
        return self._read(rest) + self._named(self._parser.finish())

    def _read(self, text: str) -> MessageDelta:
        delta, at = MessageDelta(), 0
        for mark in self._mark.finditer(text):
            delta += self._read_text(text[at : mark.start()]) + self._read_mark(mark.group())
            at = mark.end()
        return delta + self._read_text(text[at:])

    def _read_mark(self, mark: str) -> MessageDelta:
        ended, self._kind = self._kind, None
        if mark in self._channels.bodies:
            header, self._header = self._header or "", None
            self._kind, self._breaks = self._channels.bodies[mark] or _kind_of(header), True
        else:
            self._header = "" if mark == self._channels.header else None
        if self._channels.marked and self._calls and "call" in (ended, self._kind):
            return self._named(self._parser.feed(mark))
        return MessageDelta()

    def _read_text(self, text: str) -> MessageDelta:
        if self._header is not None:
            self._header = (self._header + text)[:_LONGEST_HEADER]
            return MessageDelta()
        if self._kind == "call" and self._calls:
            return self._named(self._parser.feed(text)) if text else MessageDelta()
        kind: Kind = "reasoning" if self._kind == "reasoning" else "content"
        if not text or (self._kind is None and not text.strip()):
            return MessageDelta()
        if self._breaks and kind in self._written:
            text = f"\n{text}"
        self._breaks = False
        self._written.add(kind)
        return MessageDelta(reasoning=text) if kind == "reasoning" else MessageDelta(text)

    def _named(self, delta: MessageDelta) -> MessageDelta:
        """Undo that MuseGlimmer doubles a name without a dot, as its template does."""
        calls = tuple(self._with_name(call) for call in delta.tool_calls)
        return msgspec.structs.replace(delta, tool_calls=calls) if calls else delta

    def _with_name(self, call: ToolCallDelta) -> ToolCallDelta:
        first, dot, second = (call.name or "").partition(".")
        if dot and first == second and call.name not in self._names and first in self._names:
            return msgspec.structs.replace(call, name=first)
        return call


def _kind_of(header: str) -> Kind:
    recipient = _RECIPIENT.search(header)
    return "content" if recipient is None else _KINDS.get(recipient.group(1), "call")
