r"""OpenAI's responses.

    document   {"id":"resp_1","object":"response",...,"status":"completed",...,"output":[{"type":"message",...}],...}
    stream     event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":4,...}\n\n

Reasoning, text and each function call are items of the output, in the order in which the model writes them. An item ends
where the next one begins. Unlike the streams of chats, a stream ends without `[DONE]`.

Source: OpenAI's API reference, "Responses".
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import msgspec

from formatters.base import encode
from formatters.openai import responses_schemas as objects
from formatters.openai.chat import ChatFormatter, ChatOptions
from formatters.openai.schemas import ChatCompletionLogprob
from lmi_handlers.core.errors import InvalidRequest, LMIError, QueueFull, entry_of
from lmi_handlers.core.outputs import FinishReason, TextDelta
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt
from lmi_handlers.text.output_parsers.message import MessageDelta, ToolCallDelta

ERROR_CODES: dict[type[LMIError], str] = {InvalidRequest: "invalid_prompt", QueueFull: "rate_limit_exceeded"}
"""The `code` of an error class and its subclasses. Defaults to "server_error"."""

INCOMPLETE: dict[FinishReason | None, Any] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.ABORT: "content_filter",  # the closest of OpenAI's reasons
}
"""The reasons why a response is incomplete, by the finish reasons that make it so."""

Emit = Callable[..., None]
"""`(kind, *fields)`: takes an event of class `kind`, which gets its number."""


class OpenItem(ABC):
    """The item of the output that is being generated. `index` is its place in the output."""

    prefix: ClassVar[str]

    def __init__(self, emit: Emit, request_id: str, index: int) -> None:
        self.id = f"{self.prefix}_{request_id}_{index}"
        self.index = index
        self.emit = emit
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @abstractmethod
    def end(self, status: objects.ItemStatus) -> objects.OutputItem:
        """End the item and return it."""


class OpenMessage(OpenItem):
    """A message with one part of text."""

    prefix = "msg"

    def __init__(self, emit: Emit, request_id: str, index: int) -> None:
        super().__init__(emit, request_id, index)
        self._logprobs: list[ChatCompletionLogprob] = []
        emit(objects.OutputItemAdded, index, objects.MessageItem(self.id, "in_progress", "assistant", []))
        emit(objects.ContentPartAdded, self.id, index, 0, objects.OutputText("", [], []))

    def add_text(self, text: str, logprobs: list[ChatCompletionLogprob]) -> None:
        self.add(text)
        self._logprobs += logprobs
        self.emit(objects.OutputTextDelta, self.id, self.index, 0, text, logprobs)

    def end(self, status: objects.ItemStatus) -> objects.MessageItem:
        part = objects.OutputText(self.text, [], self._logprobs)
        item = objects.MessageItem(self.id, status, "assistant", [part])
        self.emit(objects.OutputTextDone, self.id, self.index, 0, part.text, part.logprobs)
        self.emit(objects.ContentPartDone, self.id, self.index, 0, part)
        self.emit(objects.OutputItemDone, self.index, item)
        return item


class OpenReasoning(OpenItem):
    """Reasoning with one part of text."""

    prefix = "rs"

    def __init__(self, emit: Emit, request_id: str, index: int) -> None:
        super().__init__(emit, request_id, index)
        emit(objects.OutputItemAdded, index, objects.ReasoningItem(self.id, "in_progress", [], []))
        emit(objects.ContentPartAdded, self.id, index, 0, objects.ReasoningText(""))

    def add(self, text: str) -> None:
        super().add(text)
        self.emit(objects.ReasoningTextDelta, self.id, self.index, 0, text)

    def end(self, status: objects.ItemStatus) -> objects.ReasoningItem:
        part = objects.ReasoningText(self.text)
        item = objects.ReasoningItem(self.id, status, [], [part])
        self.emit(objects.ReasoningTextDone, self.id, self.index, 0, part.text)
        self.emit(objects.ContentPartDone, self.id, self.index, 0, part)
        self.emit(objects.OutputItemDone, self.index, item)
        return item


class OpenCall(OpenItem):
    """Call number `number` of the message."""

    prefix = "fc"

    def __init__(self, emit: Emit, request_id: str, index: int, call: ToolCallDelta, call_id: str) -> None:
        super().__init__(emit, request_id, index)
        self.number = call.index
        self._item = objects.FunctionCallItem(self.id, "in_progress", call_id, call.name or "", "")
        emit(objects.OutputItemAdded, index, self._item)

    def add(self, text: str) -> None:
        if text:
            super().add(text)
            self.emit(objects.FunctionCallArgumentsDelta, self.id, self.index, text)

    def end(self, status: objects.ItemStatus) -> objects.FunctionCallItem:
        item = msgspec.structs.replace(self._item, status=status, arguments=self.text)
        self.emit(objects.FunctionCallArgumentsDone, self.id, self.index, item.name, item.arguments)
        self.emit(objects.OutputItemDone, self.index, item)
        return item


Opened = TypeVar("Opened", bound=OpenItem)


class ResponseFormatter(ChatFormatter):
    """Shared by the document and the stream. `response` is the response without its output."""

    def __init__(
        self,
        request: GenerationRequest,
        prompts: tuple[RenderedPrompt, ...],
        *,
        options: ChatOptions,
        response: objects.ResponseObject,
    ) -> None:
        super().__init__(request, prompts, options=options)
        self.response = response
        self._choice = self.choices[0]  # a response has only one
        self._item: OpenItem | None = None
        self._output: list[objects.OutputItem] = []
        self._earlier_calls: tuple[ToolCallDelta, ...] = ()

    def resume_calls(self, index: int, calls: tuple[ToolCallDelta, ...]) -> None:  # noqa: ARG002  there is one choice
        """Show them again, as whole items."""
        self._earlier_calls = calls

    def emit(self, kind: type[objects.Event], *fields: object) -> None:
        """Take an event. A document has none."""

    def advance(self, delta: TextDelta) -> None:
        """Take the new text."""
        choice = self._choice
        earlier, self._earlier_calls = self._earlier_calls, ()
        self._add_calls(earlier)
        message = choice.feed(delta)
        if message == _NOTHING:
            if choice.new_tokens and self.options.logprobs and isinstance(self._item, OpenMessage):
                self._item.add_text("", self._new_logprobs())  # such as the end of the sequence
            return
        if message.reasoning and self.options.include_reasoning:
            self._opened(OpenReasoning).add(message.reasoning)
        # New text follows the call that is still open, and precedes the calls that begin.
        number = self._item.number if isinstance(self._item, OpenCall) else None
        self._add_calls(call for call in message.tool_calls if call.index == number)
        if message.content:
            self._opened(OpenMessage).add_text(message.content, self._new_logprobs())
        self._add_calls(call for call in message.tool_calls if call.index != number)
        choice.new_tokens = []  # the others belong to the reasoning or to calls

    def ended(self) -> objects.ResponseObject:
        """End the last item and return the whole response."""
        reason = INCOMPLETE.get(self._choice.finish_reason)
        if self._item is None and not self._choice.reasoning_tokens:
            self._opened(OpenMessage).add_text("", self._new_logprobs())
        self._close("incomplete" if reason else "completed")
        return msgspec.structs.replace(
            self.response,
            status="incomplete" if reason else "completed",
            completed_at=None if reason else int(time.time()),
            incomplete_details=objects.IncompleteDetails(reason) if reason else None,
            output=self._output,
            usage=self._usage(),
            continuation=self.continued_by,
        )

    def failed(self, error: objects.ResponseError) -> objects.ResponseObject:
        return msgspec.structs.replace(self.response, status="failed", error=error, output=self._output)

    def _usage(self) -> objects.ResponseUsage:
        input_tokens, output_tokens = sum(self.prompt_tokens), self._choice.num_tokens
        return objects.ResponseUsage(
            input_tokens,
            objects.InputTokensDetails(self.cached_tokens or 0, 0),
            output_tokens,
            objects.OutputTokensDetails(self._choice.reasoning_tokens),
            input_tokens + output_tokens,
        )

    def _new_logprobs(self) -> list[ChatCompletionLogprob]:
        logprobs, self._choice.new_tokens = self.logprobs(self._choice.new_tokens), []
        return [] if logprobs is None else logprobs.content

    def _add_calls(self, calls: Iterable[ToolCallDelta]) -> None:
        for call in calls:
            item = self._item
            if not isinstance(item, OpenCall) or item.number != call.index:
                self._close("completed")
                call_id = self._choice.call_id(call.index)
                item = OpenCall(self.emit, self.request.request_id, len(self._output), call, call_id)
                self._item = item
            item.add(call.arguments)

    def _opened(self, kind: type[Opened]) -> Opened:
        """Return the open item if it is of this kind. Otherwise end it and begin a new one."""
        if not isinstance(self._item, kind):
            self._close("completed")
            self._item = kind(self.emit, self.request.request_id, len(self._output))
        return self._item

    def _close(self, status: objects.ItemStatus) -> None:
        if self._item is not None:
            self._output.append(self._item.end(status))
            self._item = None


class ResponseJsonFormatter(ResponseFormatter):
    """One document at the end."""

    content_type = "application/json"
    streams = False

    def feed(self, delta: TextDelta) -> bytes:
        self.advance(delta)
        return b""

    def finish(self) -> bytes:
        return encode(self.ended())


class ResponseSseFormatter(ResponseFormatter):
    """Events with names and numbers."""

    content_type = "text/event-stream"
    streams = True

    def __init__(
        self,
        request: GenerationRequest,
        prompts: tuple[RenderedPrompt, ...],
        *,
        options: ChatOptions,
        response: objects.ResponseObject,
    ) -> None:
        super().__init__(request, prompts, options=options, response=response)
        self._number = 0
        self._records: list[bytes] = []

    def emit(self, kind: type[objects.Event], *fields: object) -> None:
        name = str(kind.__struct_config__.tag).encode()
        self._records.append(b"event: " + name + b"\ndata: " + encode(kind(self._number, *fields)) + b"\n\n")
        self._number += 1

    def feed(self, delta: TextDelta) -> bytes:
        if not self._number:
            self.emit(objects.ResponseCreated, self.response)
            self.emit(objects.ResponseInProgress, self.response)
        self.advance(delta)
        return self._taken()

    def finish(self) -> bytes:
        response = self.ended()
        self.emit(objects.ResponseCompleted if response.status == "completed" else objects.ResponseIncomplete, response)
        return self._taken()

    def error(self, error: LMIError) -> bytes:
        code, field = entry_of(error, ERROR_CODES, "server_error"), getattr(error, "field", None)
        self.emit(objects.ErrorEvent, code, str(error), field)
        self.emit(objects.ResponseFailed, self.failed(objects.ResponseError(code, str(error))))
        return self._taken()

    def _taken(self) -> bytes:
        records, self._records = b"".join(self._records), []
        return records


_NOTHING = MessageDelta()
