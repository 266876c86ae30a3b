r"""Anthropic's messages.

    document   {"id":"msg_1","type":"message","role":"assistant",...,"content":[{"type":"text","text":".."}],...}
    stream     event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{...}}\n\n
    lines      the data of these events, one per line, as Bedrock streams them

Thoughts, text and each call are blocks, in the order in which the model writes them. A block ends where the next one
begins.

Source: Anthropic's API reference, "Messages" and "Streaming messages".
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from formatters.anthropic import schemas
from formatters.anthropic.errors import error_document
from formatters.base import encode, line
from formatters.openai.chat import ChatFormatter, ChatOptions
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt
from lmi_handlers.text.output_parsers.message import ToolCallDelta

_ENDED: dict[FinishReason | None, schemas.StopReason] = {
    FinishReason.LENGTH: "max_tokens",
    FinishReason.ABORT: "refusal",  # the closest of Anthropic's reasons
}
"""Stop reasons of messages that the model did not end by itself."""


class MessageFormatter(ChatFormatter):
    """Shared by the document and the stream."""

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: ChatOptions
    ) -> None:
        super().__init__(request, prompts, options=options)
        self._choice = self.choices[0]  # a message has no alternatives
        self._blocks = 0
        self._open: schemas.OutputBlock | None = None
        self._call: int | None = None  # the number of the open call
        self._pieces: list[str] = []  # the text of the open block
        self._stop_string: str | None = None
        self._is_whole = False  # the last call
        self._earlier_calls: tuple[ToolCallDelta, ...] = ()

    def resume_calls(self, index: int, calls: tuple[ToolCallDelta, ...]) -> None:  # noqa: ARG002  there is one choice
        """Show them again, as whole blocks."""
        self._earlier_calls = calls

    def emit(self, event: schemas.MessageEvent) -> None:
        """Take an event. A document has none."""

    def ended(self, block: schemas.OutputBlock) -> None:
        """Take a complete block. A stream keeps none."""

    def advance(self, delta: TextDelta) -> None:
        """Take the new text."""
        earlier, self._earlier_calls = self._earlier_calls, ()
        self._add_calls(earlier)
        message = self._choice.feed(delta)
        self._choice.new_tokens = []  # there are no log probabilities
        self._stop_string = delta.stop_string
        if message.reasoning and self.options.include_reasoning:
            self._add(schemas.ThinkingBlock("", ""), message.reasoning)
        # New text follows the call that is still open, and precedes the calls that begin.
        number = self._call
        self._add_calls(call for call in message.tool_calls if call.index == number)
        if message.content:
            self._add(schemas.TextBlock(""), message.content)
        self._add_calls(call for call in message.tool_calls if call.index != number)

    def close_block(self) -> None:
        """End the open block, if there is one."""
        block, text = self._open, "".join(self._pieces)
        match block:
            case None:
                return
            case schemas.TextBlock():
                block.text = text
            case schemas.ThinkingBlock():
                block.thinking, block.signature = text, _signature(text)
                self._emit_delta(schemas.NewSignature(block.signature))
            case schemas.ToolUseBlock():
                arguments = _arguments(text)
                block.input, self._is_whole = arguments or {}, arguments is not None
        self.emit(schemas.ContentBlockStop(self._blocks))
        self.ended(block)
        self._blocks += 1
        self._open, self._call, self._pieces = None, None, []

    def close_message(self) -> None:
        """End the last block. A message without any has an empty text, as in vLLM, because clients read its first block."""
        if not self._blocks and self._open is None:
            self._begin(schemas.TextBlock(""))
        self.close_block()

    def message(self, content: list[schemas.OutputBlock], end: schemas.MessageEnd | None) -> schemas.MessageAnswer:
        """Return the message so far."""
        return schemas.MessageAnswer(
            id=f"msg_{self.request.request_id}",
            type="message",
            role="assistant",
            model=self.options.model,
            content=content,
            stop_reason=None if end is None else end.stop_reason,
            stop_sequence=None if end is None else end.stop_sequence,
            usage=self.message_usage(),
            continuation=UNSET if end is None else end.continuation,
        )

    def end(self) -> schemas.MessageEnd:
        """Return how the message ended. Only a stop string that has cut off a call keeps clients from making it."""
        choice, stop = self._choice, self._stop_string
        if choice.finish_reason in _ENDED:
            return schemas.MessageEnd(_ENDED[choice.finish_reason], None, self.cut_by, self.continued_by)
        if stop is not None and not self._is_whole:
            return schemas.MessageEnd("stop_sequence", stop)
        return schemas.MessageEnd("tool_use" if choice.calls else "end_turn", None)

    def message_usage(self) -> schemas.MessageUsage:
        """Return the tokens used so far."""
        cached = self.cached_tokens or 0
        return schemas.MessageUsage(sum(self.prompt_tokens) - cached, 0, cached, self._choice.num_tokens)

    def _add_calls(self, calls: Iterable[ToolCallDelta]) -> None:
        for call in calls:
            if self._call != call.index:
                self.close_block()
                self._begin(schemas.ToolUseBlock(self._choice.call_id(call.index), call.name or "", {}))
                self._call = call.index
            if call.arguments:
                self._pieces.append(call.arguments)
                self._emit_delta(schemas.NewInput(call.arguments))

    def _add(self, empty: schemas.TextBlock | schemas.ThinkingBlock, text: str) -> None:
        """Add text to the open block, if that is of the kind of `empty`, or else to a new one."""
        if type(self._open) is not type(empty):
            self.close_block()
            self._begin(empty)
        self._pieces.append(text)
        thinks = isinstance(empty, schemas.ThinkingBlock)
        self._emit_delta(schemas.NewThinking(text) if thinks else schemas.NewText(text))

    def _begin(self, block: schemas.OutputBlock) -> None:
        self._open = block
        self.emit(schemas.ContentBlockStart(self._blocks, block))

    def _emit_delta(self, delta: Any) -> None:
        self.emit(schemas.ContentBlockDelta(self._blocks, delta))


class MessageJsonFormatter(MessageFormatter):
    """One document at the end."""

    content_type = "application/json"
    streams = False

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: ChatOptions
    ) -> None:
        super().__init__(request, prompts, options=options)
        self._content: list[schemas.OutputBlock] = []

    def ended(self, block: schemas.OutputBlock) -> None:
        self._content.append(block)

    def feed(self, delta: TextDelta) -> bytes:
        self.advance(delta)
        return b""

    def finish(self) -> bytes:
        self.close_message()
        return encode(self.message(self._content, self.end()))


class MessageSseFormatter(MessageFormatter):
    """Events with names."""

    content_type = "text/event-stream"
    streams = True

    def __init__(
        self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...], *, options: ChatOptions
    ) -> None:
        super().__init__(request, prompts, options=options)
        self._begun = False
        self._records: list[bytes] = []

    def frame(self, name: str, document: bytes) -> bytes:
        """Return the record of an event."""
        return f"event: {name}\ndata: ".encode() + document + b"\n\n"

    def emit(self, event: schemas.MessageEvent) -> None:
        self._records.append(self.frame(str(event.__struct_config__.tag), encode(event)))

    def begin(self) -> None:
        """Write how each message begins, once."""
        if not self._begun:
            self._begun = True
            self.emit(schemas.MessageStart(self.message([], None)))
            self.emit(schemas.Ping())

    def feed(self, delta: TextDelta) -> bytes:
        self.begin()
        self.advance(delta)
        return self._taken()

    def keep_alive(self) -> bytes:
        """Return a `ping`, or how the message begins."""
        self.begin()
        return self._taken() or self.frame("ping", encode(schemas.Ping()))

    def finish(self) -> bytes:
        self.close_message()
        self.emit(schemas.MessageDelta(self.end(), self.message_usage()))
        self.emit(schemas.MessageStop())
        return self._taken()

    def error(self, error: LMIError) -> bytes:
        return self.frame("error", error_document(error))

    def _taken(self) -> bytes:
        records, self._records = b"".join(self._records), []
        return records


class MessageJsonLinesFormatter(MessageSseFormatter):
    """The data of the events, one per line."""

    content_type = "application/jsonlines"

    def frame(self, name: str, document: bytes) -> bytes:  # noqa: ARG002  the document has it, too
        return line(document)


def _signature(thoughts: str) -> str:
    """Return a text that depends on the thoughts. Clients require one, but nothing here checks it."""
    return base64.b64encode(hashlib.sha256(thoughts.encode(errors="replace")).digest()).decode()


def _arguments(text: str) -> dict[str, Any] | None:
    """Return the input of a call, or None if the model has not written all of it, or no object."""
    try:
        arguments: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    return arguments
