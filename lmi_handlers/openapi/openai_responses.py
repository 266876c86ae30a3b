"""What OpenAI's routes answer, and Aleph Alpha's, under the names of TGI's document.

Sources: OpenAI's and Aleph Alpha's API references, and TGI's OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.openapi.responses import Count
from lmi_handlers.openapi.schemas import one_of

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


class AlephAlphaChunk(msgspec.Struct):
    """OpenAI's event, the fingerprint in each choice's last one alone."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    system_fingerprint: str | None
    choices: list[ChatCompletionChoice]
    usage: Usage | None


class AlephAlphaError(msgspec.Struct):
    """What is wrong, and what kind of mistake that is."""

    error: str
    code: str


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


# Aleph Alpha's text completions

AlephAlphaFinishReason = Literal["end_of_text", "stop_sequence_reached", "maximum_tokens", "content_filter"]


class AlephAlphaCompletion(msgspec.Struct):
    """One of the answers. `log_probs` has each token's logprob and its likeliest alternatives', by their texts."""

    index: Count
    completion: str
    finish_reason: AlephAlphaFinishReason
    log_probs: list[dict[str, float]] | UnsetType = UNSET
    raw_completion: str | UnsetType = UNSET
    completion_tokens: list[str] | UnsetType = UNSET


class AlephAlphaCompletions(msgspec.Struct):
    """A whole answer. Tokens are counted over all that was generated, the prompt's once for each."""

    completions: list[AlephAlphaCompletion]
    model_version: str
    num_tokens_prompt_total: Count
    num_tokens_generated: Count


class AlephAlphaStreamChunk(msgspec.Struct, tag_field="type", tag="stream_chunk"):
    """What is new of one of the answers, with the same details."""

    index: Count
    completion: str
    log_probs: list[dict[str, float]] | UnsetType = UNSET
    raw_completion: str | UnsetType = UNSET
    completion_tokens: list[str] | UnsetType = UNSET


class AlephAlphaStreamSummary(msgspec.Struct, tag_field="type", tag="stream_summary"):
    """The end of one of the answers."""

    index: Count
    model_version: str
    finish_reason: AlephAlphaFinishReason


class AlephAlphaCompletionSummary(msgspec.Struct, tag_field="type", tag="completion_summary"):
    """The end of all answers, and of the stream."""

    num_tokens_prompt_total: Count
    num_tokens_generated: Count


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
