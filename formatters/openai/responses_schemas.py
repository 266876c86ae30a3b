"""The answers of `/v1/responses`: the response, its output items, and the events of a stream.

Source: OpenAI's API reference, "Responses".
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, UnsetType

from formatters.base import Response
from formatters.openai.schemas import ChatCompletionLogprob
from lmi_handlers.core.json_types import Count, one_of

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputTokensDetails(Response):
    """The number of input tokens that were found in the engine's prefix cache, 0 if the engine does not say."""

    cached_tokens: Count
    cache_write_tokens: Count


class OutputTokensDetails(Response):
    """The number of output tokens up to the end of the reasoning."""

    reasoning_tokens: Count


class ResponseUsage(Response):
    """The number of tokens that the request used."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class IncompleteDetails(Response):
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseError(Response):
    """The error of a failed response."""

    code: str
    message: str


# Output items


class OutputText(Response, tag_field="type", tag="output_text"):
    """The text of a message. There are no annotations. `logprobs` is empty unless the request asks for them."""

    text: str
    annotations: list[object]
    logprobs: list[ChatCompletionLogprob]


class ReasoningText(Response, tag_field="type", tag="reasoning_text"):
    """The text of a reasoning item."""

    text: str


ContentPart = OutputText | ReasoningText


class MessageItem(Response, tag_field="type", tag="message"):
    """The text of the model. It has one part once its text has begun."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(Response, tag_field="type", tag="reasoning"):
    """The thoughts of the model before it answers. There is no summary."""

    id: str
    status: ItemStatus
    summary: list[object]
    content: list[ReasoningText]


class FunctionCallItem(Response, tag_field="type", tag="function_call"):
    """A function that the model calls. `arguments` is JSON text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class ResponseReasoning(Response):
    """The reasoning settings of the request."""

    effort: str | None
    summary: str | None


# Parts of the request. They are declared here because `ResponseObject` has a field called `object`.
TextFormat = Annotated[object, one_of("The format of the text.", "ResponseText")]
ToolChoice = Annotated[object, one_of("Which tool must be called.", "ResponseToolChoice")]
Tool = Annotated[object, one_of("A function.", "FunctionTool")]


class ResponseObject(Response, kw_only=True):
    """A response. Times are Unix times in seconds. Nothing is stored, whatever `store` asks for.

    The fields after `usage` repeat the request. A request with `continuation`, which OpenAI does not have, goes on with a
    text that a time limit has ended.
    """

    id: str
    object: Literal["response"]
    created_at: Count
    completed_at: Count | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None

    instructions: str | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: ResponseReasoning
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    max_output_tokens: int | None
    max_tool_calls: int | None
    text: TextFormat
    tool_choice: ToolChoice
    tools: list[Tool]
    top_logprobs: Count
    truncation: str
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None

    background: bool
    previous_response_id: None
    service_tier: Literal["default"]
    store: bool
    continuation: str | UnsetType = UNSET


# Events


class Event(Response, tag_field="type"):
    """An event of a stream. Events are numbered from 0."""

    sequence_number: Count


class ResponseCreated(Event, tag="response.created"):
    """The first event."""

    response: ResponseObject


class ResponseInProgress(Event, tag="response.in_progress"):
    """The second event."""

    response: ResponseObject


class ResponseCompleted(Event, tag="response.completed"):
    """The last event of a complete response."""

    response: ResponseObject


class ResponseIncomplete(Event, tag="response.incomplete"):
    """The last event of a response that was cut off."""

    response: ResponseObject


class ResponseFailed(Event, tag="response.failed"):
    """The last event of a response that failed, after the event `error`."""

    response: ResponseObject


class OutputItemAdded(Event, tag="response.output_item.added"):
    """An item begins."""

    output_index: Count
    item: OutputItem


class OutputItemDone(Event, tag="response.output_item.done"):
    """An item is complete."""

    output_index: Count
    item: OutputItem


class PartEvent(Event):
    """An event about the content of an item, which has one part."""

    item_id: str
    output_index: Count
    content_index: Count


class ContentPartAdded(PartEvent, tag="response.content_part.added"):
    """A part begins."""

    part: ContentPart


class ContentPartDone(PartEvent, tag="response.content_part.done"):
    """A part is complete."""

    part: ContentPart


class OutputTextDelta(PartEvent, tag="response.output_text.delta"):
    """More text of a message."""

    delta: str
    logprobs: list[ChatCompletionLogprob]


class OutputTextDone(PartEvent, tag="response.output_text.done"):
    """The whole text of a message."""

    text: str
    logprobs: list[ChatCompletionLogprob]


class ReasoningTextDelta(PartEvent, tag="response.reasoning_text.delta"):
    """More text of the reasoning."""

    delta: str


class ReasoningTextDone(PartEvent, tag="response.reasoning_text.done"):
    """The whole text of the reasoning."""

    text: str


class CallEvent(Event):
    """An event about the arguments of a function call."""

    item_id: str
    output_index: Count


class FunctionCallArgumentsDelta(CallEvent, tag="response.function_call_arguments.delta"):
    """More of the arguments."""

    delta: str


class FunctionCallArgumentsDone(CallEvent, tag="response.function_call_arguments.done"):
    """All of the arguments."""

    name: str
    arguments: str


class ErrorEvent(Event, tag="error"):
    """The error of the response."""

    code: str
    message: str
    param: str | None


StreamEvent = (
    ResponseCreated
    | ResponseInProgress
    | OutputItemAdded
    | ContentPartAdded
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ContentPartDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | OutputItemDone
    | ResponseCompleted
    | ResponseIncomplete
    | ErrorEvent
    | ResponseFailed
)
