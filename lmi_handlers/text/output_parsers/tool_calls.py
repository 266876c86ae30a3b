"""Splits generated text into content and tool calls, piece by piece. For a whole answer, join the pieces.

No library fits. The parsers of vLLM and SGLang need torch and their engines. The parser of transformers supports few
models, returns a call only when it is complete, and raises on incomplete JSON.
"""

from __future__ import annotations

import re
from abc import abstractmethod

from lmi_handlers.text.output_parsers.call_markup import GLM, Markup
from lmi_handlers.text.output_parsers.call_syntax import CallReader, Schemas
from lmi_handlers.text.output_parsers.cursor import SPACE, Cursor, Malformed, Reading
from lmi_handlers.text.output_parsers.message import MessageDelta, MessageParser, ToolCallDelta
from lmi_handlers.text.output_parsers.tool_formats import Tag, ToolFormat


class _ReadingParser(MessageParser):
    """Runs `_read` as far as the available text allows."""

    def __init__(self, schemas: Schemas, named: Markup = GLM, *, keyed: bool = False) -> None:
        self._text = Cursor()
        self._deltas = _Deltas()
        self._calls = CallReader(self._text, self._deltas, schemas, named, keyed=keyed)
        self._reading = self._read()

    def feed(self, text: str) -> MessageDelta:
        self._text.append(text)
        next(self._reading, None)
        return self._deltas.take()

    def finish(self) -> MessageDelta:
        self._text.end()
        next(self._reading, None)
        return self._deltas.take()

    @abstractmethod
    def _read(self) -> Reading[None]:
        """Read all of the text into `_deltas`."""


class CallListParser(_ReadingParser):
    """For calls only.

    A grammar makes the text `[{"name": "f", "arguments": {...}}, ...]`. Any other text is content.
    """

    def __init__(self) -> None:
        super().__init__({})

    def _read(self) -> Reading[None]:
        text = self._text
        text.hold()
        yield from text.take_while(SPACE)
        try:
            yield from self._calls.read(known_names_only=False)
        except Malformed:
            self._deltas.add_content(text.release())
        else:
            yield from text.take_while(SPACE)
            text.release()
        while (yield from text.peek()):
            self._deltas.add_content(text.take_available(_ANYTHING))


class TaggedCallParser(_ReadingParser):
    """For content and calls in the format of a model's family, without a grammar.

    White space around calls is dropped. A tag without a call is content. Text that looks like an untagged call is
    content if it does not name a function in `schemas`. After that, untagged calls are no longer recognised in the
    message.
    """

    def __init__(self, format: ToolFormat, schemas: Schemas) -> None:  # noqa: A002
        self._format = format
        # Text without white space or the first character of any tag.
        marks = [mark for tag in (format.section, *format.tags) for mark in (tag.open, tag.close)]
        firsts = {mark[0] for mark in (*marks, *format.framing) if mark}
        self._separators = SPACE if "]" in firsts else _AFTER_CALL
        self._words = re.compile(rf"[^\s{re.escape(''.join(sorted(firsts)))}]+")
        self._bare = format.bare
        self._ends: tuple[str, ...] = ()  # the end tags that are still expected
        self._at_start = True
        self._after_call = False  # only white space since the last call
        self.names = schemas.keys()
        self.openings = tuple(
            tag.open for tag in (format.section, *format.tags) if tag.open and not tag.known_names_only
        )
        super().__init__(schemas, format.named, keyed=format.keyed)

    def _read(self) -> Reading[None]:
        while (yield from self._read_next()):
            self._at_start = False

    def _read_next(self) -> Reading[bool]:
        """Read white space and then calls, an end tag or a word of content. Return false at the end of the text."""
        text = self._text
        text.hold()
        space = yield from text.take_while(self._separators if self._after_call else SPACE)
        char = yield from text.peek()
        if not char:
            self._deltas.add_content("" if self._after_call else text.release())
            return False
        if end := (yield from text.accept_any(self._ends)):
            self._ends = tuple(other for other in self._ends if other != end)
            self._after_call = True
            return True
        if (yield from text.accept_any(self._format.framing)):
            text.release()
            self._deltas.add_content("" if self._after_call else space)
            return True
        tag = yield from self._accept_tag()
        is_bare = char in self._bare and (self._at_start or "\n" in space)
        found = False
        if tag or is_bare or self._after_call:
            found = yield from self._read_calls(tag)
        if found:
            # Qwen3-Coder sometimes leaves out the opening tag but still writes the end tag.
            if tag or not self._ends:
                closes = ((tag or self._format.tags[0]).close, self._format.section.close)
                self._ends = tuple(close for close in closes if close)
            self._after_call = True
        elif is_bare:
            self._bare = ""  # the answer itself is JSON, so do not look for calls inside it
        rejected = text.release()
        if self._after_call:
            rejected = rejected.lstrip()
        if not found and not rejected.strip():
            rejected += text.take(1) + text.take_available(self._words)
        if rejected:
            self._deltas.add_content(rejected)
            self._after_call = False
        return True

    def _accept_tag(self) -> Reading[Tag | None]:
        yield from self._text.accept(self._format.section.open)
        yield from self._text.take_while(SPACE)
        for tag in self._format.tags:
            found = self._text.starts_with if tag.in_call else self._text.accept
            if (yield from found(tag.open)):
                return tag
        return None

    def _read_calls(self, tag: Tag | None) -> Reading[bool]:
        """Read one or more calls and return whether there were any. Text that is still held is not part of a call."""
        calls_before = self._deltas.calls
        try:
            if tag:
                yield from self._text.take_while(SPACE)
            yield from self._calls.read(known_names_only=tag is None or tag.known_names_only)
        except Malformed:
            pass
        else:
            self._text.release()
        return self._deltas.calls > calls_before


class _Deltas:
    """Text that has been read but not returned yet."""

    def __init__(self) -> None:
        self.calls = 0
        self._content: list[str] = []
        self._tool_calls: list[tuple[int, str | None, list[str]]] = []

    def add_content(self, text: str) -> None:
        self._content.append(text)

    def open_call(self, name: str) -> None:
        self._tool_calls.append((self.calls, name, []))
        self.calls += 1

    def write_arguments(self, piece: str) -> None:
        if not self._tool_calls:
            self._tool_calls.append((self.calls - 1, None, []))
        self._tool_calls[-1][2].append(piece)

    def take(self) -> MessageDelta:
        delta = MessageDelta(
            "".join(self._content),
            tuple(ToolCallDelta(index, name, "".join(pieces)) for index, name, pieces in self._tool_calls),
        )
        self._content.clear()
        self._tool_calls.clear()
        return delta


_ANYTHING = re.compile(r".+", re.DOTALL)
_AFTER_CALL = re.compile(r"[\s,;\]}]+")  # separators between calls, and superfluous brackets
