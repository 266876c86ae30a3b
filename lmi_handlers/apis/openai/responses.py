"""What OpenAI's routes answer, under the names of TGI's document.

Sources: OpenAI's API reference and TGI's OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.core.json_types import Count, one_of

TextFinishReason = Literal["stop", "length", "abort", "error"]
ChatFinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


class Usage(msgspec.Struct):
    """How many tokens a request took."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class OpenAIErrorDetails(msgspec.Struct):
    """What is wrong: `param` is the field, `code` is set where clients are known to look at it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct):
    """What is wrong. A stream that has begun ends with an event like this, and `[DONE]`."""

    error: OpenAIErrorDetails


# Chat completions


class ChatCompletionTopLogprob(msgspec.Struct):
    """A token that could have been in the place of another one; `bytes` is its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[Count]


class ChatCompletionLogprob(msgspec.Struct):
    """A token and its logprob; `bytes` is its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[Count]
    top_logprobs: list[ChatCompletionTopLogprob]


class ChatCompletionLogprobs(msgspec.Struct):
    """The logprobs of a message, or of what is new of it."""

    content: list[ChatCompletionLogprob]


class FunctionCall(msgspec.Struct):
    """The function to call, its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class TextMessage(msgspec.Struct):
    """A message that is a text; null where it ended inside the thoughts, which are in `reasoning_content`."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET


class ToolCallMessage(msgspec.Struct):
    """A message that asks for calls."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall]
    reasoning_content: str | UnsetType = UNSET


OutputMessage = Annotated[object, one_of("What the model says.", "TextMessage", "ToolCallMessage")]


class ChatCompletionComplete(msgspec.Struct):
    """One of the answers."""

    index: Count
    message: OutputMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: ChatFinishReason


class ChatCompletion(msgspec.Struct):
    """A whole answer. `created` is a Unix time in seconds."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionComplete]
    usage: Usage


class Function(msgspec.Struct):
    """A part of a call: the name comes with the first one, the arguments' text in pieces."""

    arguments: str
    name: str | UnsetType = UNSET


class DeltaToolCall(msgspec.Struct):
    """What is new of the `index`-th call; `id` and `type` come with its first part."""

    index: Count
    function: Function
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatCompletionDelta(msgspec.Struct):
    """What is new of a message. The first one has the role, the last one nothing."""

    role: Literal["assistant"] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[DeltaToolCall] | UnsetType = UNSET


class ChatCompletionChoice(msgspec.Struct):
    """What is new of one of the answers; why it ended, once it has."""

    index: Count
    delta: ChatCompletionDelta
    logprobs: ChatCompletionLogprobs | None
    finish_reason: ChatFinishReason | None


class ChatCompletionChunk(msgspec.Struct):
    """An event. The one with the usage has no choices. The last one's data is `[DONE]`, which is no JSON."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChoice]
    usage: Usage | None


# Text completions


class CompletionLogprobs(msgspec.Struct):
    """The logprobs of a text, a list each with an entry a token; null for a prompt's first token."""

    text_offset: list[Count]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionComplete(msgspec.Struct):
    """One of the answers."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: TextFinishReason


class CompletionFinal(msgspec.Struct):
    """A whole answer. `created` is a Unix time in seconds."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[CompletionComplete]
    usage: Usage


class CompletionDelta(msgspec.Struct):
    """What is new of one of the answers; why it ended, once it has."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: TextFinishReason | None


class Chunk(msgspec.Struct):
    """An event. The one with the usage has no choices. The last one's data is `[DONE]`, which is no JSON."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[CompletionDelta]
    usage: Usage | None


Completion = Annotated[object, one_of("A whole answer, or an event.", "Chunk", "CompletionFinal")]


# Models


class ModelInfo(msgspec.Struct):
    """The model, or an adapter, whose `parent` it is. `created` is a Unix time in seconds."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    parent: str | None


class ModelList(msgspec.Struct):
    """What is served."""

    object: Literal["list"]
    data: list[ModelInfo]
