"""The answers of Anthropic's routes: the message, its content blocks, the events of a stream, and errors.

Source: Anthropic's API reference, "Messages" and "Streaming messages".
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from formatters.base import Response
from lmi_handlers.core.json_types import Count

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class MessageUsage(Response):
    """Numbers of tokens. `input_tokens` leaves out those that were found in the prefix cache."""

    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count


class TextBlock(Response, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class ThinkingBlock(Response, tag_field="type", tag="thinking"):
    """The thoughts of the model. Clients send the `signature` back; it has no other use here."""

    thinking: str
    signature: str


class ToolUseBlock(Response, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageAnswer(Response):
    """A message by the model. `stop_reason` is null at the start of a stream.

    A request with `continuation`, which Anthropic does not have, goes on with a message that a time limit has ended.
    """

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[OutputBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    continuation: str | UnsetType = UNSET


class TokenCount(Response):
    """The number of a prompt's tokens."""

    input_tokens: Count


# Events


class MessageStart(Response, tag_field="type", tag="message_start"):
    """The first event. The message has no content yet."""

    message: MessageAnswer


class Ping(Response, tag_field="type", tag="ping"):
    """Nothing, which clients skip."""


class ContentBlockStart(Response, tag_field="type", tag="content_block_start"):
    """A block begins. It is still empty."""

    index: Count
    content_block: OutputBlock


class NewText(Response, tag_field="type", tag="text_delta"):
    """The next piece of a text."""

    text: str


class NewThinking(Response, tag_field="type", tag="thinking_delta"):
    """The next piece of the model's thoughts."""

    thinking: str


class NewSignature(Response, tag_field="type", tag="signature_delta"):
    """The signature of the thoughts, after all of them."""

    signature: str


class NewInput(Response, tag_field="type", tag="input_json_delta"):
    """The next piece of the JSON text of a call's input, as the model wrote it."""

    partial_json: str


class ContentBlockDelta(Response, tag_field="type", tag="content_block_delta"):
    """An addition to the open block."""

    index: Count
    delta: NewText | NewThinking | NewSignature | NewInput


class ContentBlockStop(Response, tag_field="type", tag="content_block_stop"):
    """The block is complete."""

    index: Count


class MessageEnd(Response):
    """The end of the message. `truncated`, which Anthropic does not have, names the option that ended it early.

    A request with `continuation` goes on with it.
    """

    stop_reason: StopReason
    stop_sequence: str | None
    truncated: str | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class MessageDelta(Response, tag_field="type", tag="message_delta"):
    """The end of the message, with its usage."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Response, tag_field="type", tag="message_stop"):
    """The last event."""


class ErrorDetails(Response):
    """The kind of an error, and its cause."""

    type: str
    message: str


class AnthropicError(Response, tag_field="type", tag="error"):
    """An error. In a stream, it is the last event."""

    error: ErrorDetails


MessageEvent = (
    MessageStart
    | Ping
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)
