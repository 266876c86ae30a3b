"""The answers of OpenAI's routes, named as in TGI's OpenAPI document.

Sources: OpenAI's API reference and TGI's OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, UnsetType

from formatters.base import Response
from lmi_handlers.core.json_types import Count, one_of

TextFinishReason = Literal["stop", "length", "content_filter"]
ChatFinishReason = Literal["stop", "length", "content_filter", "tool_calls", "function_call"]


class PromptTokensDetails(Response):
    """The number of prompt tokens that were found in the engine's prefix cache."""

    cached_tokens: Count


class CompletionTokensDetails(Response):
    """The number of generated tokens up to the end of the reasoning."""

    reasoning_tokens: Count


class Usage(Response):
    """The number of tokens that the request used.

    The details of the prompt are omitted unless the engine reports them, and those of the completion unless the server
    separates the reasoning, as in vLLM.
    """

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class OpenAIErrorDetails(Response):
    """The error. `param` names the field; `code` is set only for errors whose code clients check."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Response):
    """An error. If it occurs during a stream, it is sent as an event, followed by `[DONE]`."""

    error: OpenAIErrorDetails


# Chat completions


class ChatCompletionTopLogprob(Response):
    """An alternative token and its logprob. `bytes` is its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[Count]


class ChatCompletionLogprob(ChatCompletionTopLogprob):
    """A token, its logprob, and the alternatives."""

    top_logprobs: list[ChatCompletionTopLogprob]


class ChatCompletionLogprobs(Response):
    """The logprobs of a message, or of its new tokens in a stream."""

    content: list[ChatCompletionLogprob]


class FunctionCall(Response):
    """The function to call. `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(Response):
    """A tool call requested by the model."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class TextMessage(Response):
    """A text message. `content` is null if the answer ended during the reasoning.

    The reasoning is in `reasoning_content`, and again in `reasoning`, its newer name in vLLM.
    """

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ToolCallMessage(Response, kw_only=True):
    """A message with tool calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall]


class FunctionCallMessage(Response, kw_only=True):
    """A message with a call, if the request has `functions`, the older form of `tools`."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    function_call: FunctionCall


OutputMessage = Annotated[
    object, one_of("What the model says.", "TextMessage", "ToolCallMessage", "FunctionCallMessage")
]


class ChatCompletionComplete(Response):
    """One of the `n` answers. `token_ids` is there if the request has `return_token_ids`, as in vLLM."""

    index: Count
    message: OutputMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: ChatFinishReason
    token_ids: list[Count] | UnsetType = UNSET


class ChatCompletion(Response):
    """The complete answer, if it is not streamed. `created` is a Unix time in seconds.

    `prompt_token_ids` is there if the request has `return_token_ids`. A request with `continuation`, which OpenAI does not
    have, goes on with a text that a time limit has ended.
    """

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionComplete]
    usage: Usage
    prompt_token_ids: list[Count] | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class Function(Response, kw_only=True):
    """Part of a tool call. The first part has the name; the text of the arguments is sent in pieces."""

    name: str | UnsetType = UNSET
    arguments: str


class DeltaToolCall(Response, kw_only=True):
    """The new part of tool call number `index`. The first part has `id` and `type`."""

    index: Count
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: Function


class ChatCompletionDelta(Response, kw_only=True):
    """The new part of a message. The first one has the role; the last one is empty.

    A call is in `function_call` instead of `tool_calls` if the request has `functions`.
    """

    role: Literal["assistant"] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[DeltaToolCall] | UnsetType = UNSET
    function_call: Function | UnsetType = UNSET


class ChatCompletionChoice(Response):
    """The new part of one of the answers. `finish_reason` is set once that answer has ended.

    `truncated`, which OpenAI does not have, names the option that has ended it before its time, and a request with
    `continuation` goes on with it. `token_ids` has the new ids if the request has `return_token_ids`.
    """

    index: Count
    delta: ChatCompletionDelta
    logprobs: ChatCompletionLogprobs | None
    finish_reason: ChatFinishReason | None
    truncated: str | UnsetType = UNSET
    token_ids: list[Count] | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class ChatCompletionChunk(Response):
    """One event of a stream. The final usage event has no choices.

    The first one of each answer has `prompt_token_ids` if the request has `return_token_ids`. The data of the last event
    is `[DONE]`, which is not JSON.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChoice]
    usage: Usage | None
    prompt_token_ids: list[Count] | UnsetType = UNSET


# Text completions


class CompletionLogprobs(Response):
    """The logprobs of a text. Each list has one entry per token; a prompt's first token has null."""

    text_offset: list[Count]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionComplete(Response):
    """One of the `n` answers. The ids are there if the request has `return_token_ids`, as in vLLM."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: TextFinishReason
    prompt_token_ids: list[Count] | UnsetType = UNSET
    token_ids: list[Count] | UnsetType = UNSET


class CompletionFinal(Response):
    """The complete answer, if it is not streamed. `created` is a Unix time in seconds. `continuation` is as in a chat."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[CompletionComplete]
    usage: Usage
    continuation: str | UnsetType = UNSET


class CompletionDelta(Response):
    """The new part of one of the answers. `finish_reason` is set once that answer has ended.

    `truncated`, `continuation` and `token_ids` are those of a chat. The first part has `prompt_token_ids`.
    """

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: TextFinishReason | None
    truncated: str | UnsetType = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET
    token_ids: list[Count] | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


class Chunk(Response):
    """One event of a stream. The final usage event has no choices.

    The data of the last event is `[DONE]`, which is not JSON.
    """

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[CompletionDelta]
    usage: Usage | None


Completion = Annotated[object, one_of("A whole answer, or an event.", "Chunk", "CompletionFinal")]


# Embeddings


class Embedding(Response):
    """The vector of input number `index`: JSON numbers, or little-endian float32 numbers in base64."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingUsage(Response):
    """The number of tokens that the request used. Nothing is generated, so both are the same."""

    prompt_tokens: Count
    total_tokens: Count


class EmbeddingList(Response):
    """The vectors of all inputs, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


# Models


class ModelInfo(Response):
    """The served model or an adapter. An adapter's `parent` is the model. `created` is a Unix time in seconds.

    `root` is the model's id on the hub, or else its name, and `max_model_len` its context length, as in vLLM. An
    adapter has neither. Where files are is not shown, because this route needs no key.
    """

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    parent: str | None
    root: str | None = None
    max_model_len: Count | None = None


class ModelList(Response):
    """The served model and its adapters."""

    object: Literal["list"]
    data: list[ModelInfo]
