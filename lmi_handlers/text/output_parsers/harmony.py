"""Reads harmony, the format in which gpt-oss writes its answers: one or more messages, each with a header.

    <|channel|>analysis<|message|>Let me look.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final <|constrain|>json<|message|>{"b": 2}<|return|>

The channel says what a message is: `analysis` is reasoning, any other is content, and one with a recipient is a tool
call. The prompt ends with the start of the first header, or in the middle of a message that is to be continued.

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re

from lmi_handlers.text.output_parsers.cursor import start_of_a_mark
from lmi_handlers.text.output_parsers.message import MessageDelta, MessageParser, ToolCallDelta

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_MARKS = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, "<|end|>", "<|call|>", "<|return|>")
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_LONGEST_HEADER = 1024
"""In characters, most of them the name of a function. The rest of a longer header is dropped."""

_CHANNEL_NAME = re.compile(rf".*{re.escape(_CHANNEL)}\s*(\w*)", re.DOTALL)
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_STARTS = ("assistant", "to=")
"""The continuations of a header where no mark shows that it is one."""


class HarmonyParser(MessageParser):
    """Splits harmony into reasoning, content and, with `calls`, tool calls. Without, their arguments are content.

    Parts of one kind are joined with line breaks, as in vLLM. Text outside any message is content.
    """

    def __init__(self, prompt: str, *, calls: bool) -> None:
        self._calls = calls
        self._num_calls = 0
        self._rest = ""  # perhaps the start of a mark
        self._header = ""
        self._in_header = False
        self._between = ""  # text after a message that may belong to a header without `<|start|>`
        self._kind: str | None = None  # of the message whose text is being read: "reasoning", "content" or "call"
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._tool_calls: list[ToolCallDelta] = []
        self._written: set[str] = set()  # the kinds that have text already
        self._breaks = False  # a new message has begun
        _, begins, last = prompt.rpartition(_START)
        if begins:
            self._open_header("")
            self._read(last)
            self._in_header = self._in_header and _CHANNEL in self._header  # else there may be text before a header
            self._forget()

    def feed(self, text: str) -> MessageDelta:
        """Take more text and return what it adds to the message."""
        text = self._rest + text
        held = start_of_a_mark(text, _MARKS)
        self._rest = text[len(text) - held :]
        self._read(text[: len(text) - held])
        return self._take()

    def finish(self) -> MessageDelta:
        """Return text that turned out to be no header."""
        rest, self._rest = self._rest, ""
        self._read(rest)
        if self._between.strip():
            self._write_between()
        return self._take()

    def _read(self, text: str) -> None:
        at = 0
        for mark in _MARK.finditer(text):
            self._read_text(text[at : mark.start()])
            self._read_mark(mark.group())
            at = mark.end()
        self._read_text(text[at:])

    def _read_mark(self, mark: str) -> None:
        if mark == _MESSAGE:
            self._begin_message()
        elif mark == _CHANNEL or (mark == _CONSTRAIN and self._in_header):
            header = self._header if self._in_header else self._between
            self._open_header(header + (_CHANNEL if mark == _CHANNEL else " "))
        elif mark == _START:
            self._open_header("")
        elif mark != _CONSTRAIN:
            self._open_header("")
            self._in_header = False

    def _open_header(self, header: str) -> None:
        self._header, self._in_header, self._between, self._kind = header[:_LONGEST_HEADER], True, "", None

    def _begin_message(self) -> None:
        header = self._header if self._in_header else self._between
        self._open_header("")
        self._in_header = False
        channel, recipient = _CHANNEL_NAME.match(header), _RECIPIENT.search(header)
        if recipient is not None and self._calls:
            self._begin("call")
            self._tool_calls.append(ToolCallDelta(self._num_calls, recipient.group(1)))
            self._num_calls += 1
        else:
            self._begin("reasoning" if channel is not None and channel.group(1) == "analysis" else "content")

    def _begin(self, kind: str) -> None:
        self._kind, self._breaks = kind, True

    def _read_text(self, text: str) -> None:
        if self._in_header:
            self._header += text[: _LONGEST_HEADER - len(self._header)]
        elif self._kind is None and text:
            self._between += text
            word = self._between[:_LONGEST_HEADER].strip()
            begins = any(start.startswith(word) or word.startswith(start) for start in _STARTS)
            if not begins or len(self._between) > _LONGEST_HEADER:
                self._write_between()
        elif text:
            self._write(text)

    def _write_between(self) -> None:
        """Text outside a message that is no header is content."""
        text, self._between = self._between, ""
        self._begin("content")
        self._write(text)

    def _write(self, text: str) -> None:
        kind = self._kind or "content"
        if kind == "call":
            self._tool_calls.append(ToolCallDelta(self._num_calls - 1, None, text))
            return
        pieces = self._reasoning if kind == "reasoning" else self._content
        if self._breaks and kind in self._written:
            pieces.append("\n")
        self._breaks = False
        self._written.add(kind)
        pieces.append(text)

    def _take(self) -> MessageDelta:
        delta = MessageDelta("".join(self._content), _joined(self._tool_calls), "".join(self._reasoning))
        self._forget()
        return delta

    def _forget(self) -> None:
        self._content, self._reasoning, self._tool_calls = [], [], []


def _joined(deltas: list[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Return one delta for each call."""
    joined: list[ToolCallDelta] = []
    for delta in deltas:
        if joined and joined[-1].index == delta.index:
            last = joined.pop()
            delta = ToolCallDelta(last.index, last.name, last.arguments + delta.arguments)
        joined.append(delta)
    return tuple(joined)
