"""OpenAI's request bodies for chat and text completions, and their translation to `SamplingParams`.

Sources: OpenAI's API reference, vLLM for the additional parameters, and TGI for the other forms of `logit_bias`,
`response_format` and `tool_choice`. null means absent, because many clients write out all their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.apis.openai.tools import Function, FunctionName, Tool, ToolChoice, check_tools, chosen_tool
from lmi_handlers.apis.parameters import Affects, Param, client_field, sampling_params
from lmi_handlers.apis.structured_outputs import (
    CONSTRAINT,
    JsonGrammar,
    JsonObjectGrammar,
    NamedSchema,
    RegexGrammar,
    StructuredOutputsBody,
    constraint_field,
    constraint_of,
)
from lmi_handlers.core.errors import InvalidRequest, aliased
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

Prompts = str | list[int | str | list[int]]
"""A text, token ids, or a list of these."""

MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """No constraint."""


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """A JSON schema, in OpenAI's `json_schema` or TGI's `value`."""

    json_schema: NamedSchema | None = None
    value: NamedSchema | None = None

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest`."""
        named = self.json_schema or self.value
        if named is None:
            raise InvalidRequest("needs `json_schema`", field="response_format")
        schema = msgspec.json.encode(named.schema).decode()
        return StructuredOutputs(json=schema, strict=named.strict is not False)


class JsonObjectFormat(JsonObjectGrammar, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object. An optional schema goes in `value`, as in huggingface_hub, or in `schema`."""

    schema: object = None

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest`."""
        schema = self.schema if self.value is None else self.value
        if schema is None:
            return StructuredOutputs(json_object=True)
        return StructuredOutputs(json=schema if isinstance(schema, str) else msgspec.json.encode(schema).decode())


ResponseFormat = TextFormat | JsonSchemaFormat | JsonObjectFormat | JsonGrammar | RegexGrammar


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` adds a final chunk with the usage; vLLM's `continuous_usage_stats` adds it to every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


def _unsigned(seed: int) -> int:
    """Convert a seed, which may be negative in OpenAI's API."""
    return seed % 2**64


def _biases(given: dict[int, float] | list[float]) -> dict[int, float]:
    """Convert TGI's list, which has one bias per vocabulary token, to a dict."""
    return {token: bias for token, bias in enumerate(given) if bias} if isinstance(given, list) else given


class OpenAIBody(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both chat and text completions.

    `user`, `metadata`, `store` and `service_tier` are accepted and ignored.
    """

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: Annotated[int, Param(convert=_unsigned)] | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | list[float] | None, Param(convert=_biases)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: Annotated[ResponseFormat | None, CONSTRAINT] = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    prompt_lookup_num_tokens: int | None = None
    thinking_token_budget: int | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: Annotated[StructuredOutputsBody, CONSTRAINT] | None = None
    guided_json: Annotated[dict[str, Any] | bool | str | None, CONSTRAINT] = None
    guided_regex: Annotated[str, CONSTRAINT] | None = None
    guided_choice: Annotated[list[str], CONSTRAINT] | None = None
    guided_grammar: Annotated[str, CONSTRAINT] | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None

    def constraint(self) -> StructuredOutputs | None:
        """Return the structured output that is asked for, if any. Raises `InvalidRequest`."""
        vllms = constraint_of(self)
        if isinstance(self.response_format, TextFormat | None):
            return vllms
        if vllms is not None:
            raise InvalidRequest(f"cannot be combined with {constraint_field(self)}", field="response_format")
        with aliased(lambda _: "response_format"):
            return self.response_format.structured_outputs()

    @property
    def constraint_field(self) -> str:
        """The field that constrains the answer. If none does, this is `structured_outputs`."""
        return constraint_field(self) if isinstance(self.response_format, TextFormat | None) else "response_format"

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """True if every chunk of a stream has the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def alias(self, field: str) -> str:
        """Return the name under which the client set a field of `SamplingParams`."""
        match field:
            case "adapters":
                return "model"
            case "structured_outputs":
                return self.constraint_field
        return client_field(self, field)

    def sampling_params(self, defaults: Mapping[str, object], computed: Mapping[str, object]) -> SamplingParams:
        """Translate. `computed` holds the fields that chat and text completions express differently.

        Raises `InvalidRequest` with OpenAI's name for the field.
        """
        if self.top_p == 0:  # in OpenAI's API, this means the most probable token only
            computed = {"top_p": None, "top_k": 1, **computed}
        with aliased(self.alias):
            return sampling_params(self, defaults, computed)


class ChatCompletionBody(OpenAIBody, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`. `functions` and `function_call` are the older form of tools."""

    messages: list[Message]
    max_completion_tokens: Annotated[int, Param("max_tokens", first=True)] | None = None
    logprobs: Annotated[bool, Affects("logprobs")] | None = None
    top_logprobs: Annotated[int, Param("logprobs", first=True)] | None = None
    tools: Annotated[list[Tool], CONSTRAINT] | None = None
    tool_choice: str | ToolChoice | None = None
    tool_prompt: str | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], CONSTRAINT] | None = None
    function_call: str | FunctionName | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    guideline: str | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None

    def offered(self) -> tuple[list[Tool], str]:
        """Return the tools, and "none", "auto", "required" or the name of the one that must be called.

        Raises `InvalidRequest`.
        """
        if self.functions is None:
            if self.function_call is not None:
                raise InvalidRequest("needs `functions`", field="function_call")
            tools = self.tools or []
            check_tools(tools)
            return tools, chosen_tool(tools, self.tool_choice)
        if self.tools is not None or self.tool_choice is not None:
            raise InvalidRequest("cannot be combined with tools, which have replaced it", field="functions")
        tools = [Tool(function) for function in self.functions]
        check_tools(tools, "functions")
        return tools, chosen_tool(tools, self.function_call, "function_call")

    @property
    def constraint_field(self) -> str:
        """As in completions, but a tool that must be called takes precedence."""
        if self.offered()[1] in ("none", "auto"):
            return super().constraint_field
        return self.tools_field

    @property
    def tools_field(self) -> str:
        """The field that has the tools."""
        return "tools" if self.functions is None else "functions"

    @property
    def parallel(self) -> bool:
        """True if an answer may have several calls."""
        return self.parallel_tool_calls is not False and self.functions is None

    @property
    def num_logprobs(self) -> int | None:
        """The number of alternatives per token, or None for no logprobs. Raises `InvalidRequest`."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("needs `logprobs`: true", field="top_logprobs")
        return _at_most_20("top_logprobs", self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(OpenAIBody, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: Prompts
    best_of: Annotated[int, Param("n", first=True)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Affects("prompt_logprobs")] | None = None
    suffix: str | None = None

    @property
    def num_logprobs(self) -> int | None:
        """The number of alternatives per token, or None for no logprobs. Raises `InvalidRequest`."""
        return None if self.logprobs is None else _at_most_20("logprobs", self.logprobs)


def num_prompts(given: Prompts) -> int:
    """The number of prompts, without checking them. A list that begins with a token id counts as one prompt."""
    return 1 if isinstance(given, str) or isinstance(next(iter(given), 0), int) else len(given)


def split_prompts(given: Prompts, field: str) -> tuple[str | tuple[int, ...], ...]:
    """Return the prompts in `field`, each one text or token ids.

    Raises `InvalidRequest` if the list is empty, or mixes prompts with token ids.
    """
    if isinstance(given, str):
        return (given,)
    if not given:
        raise InvalidRequest("must not be empty", field=field)
    token_ids = tuple(item for item in given if isinstance(item, int))
    if len(token_ids) == len(given):
        return (token_ids,)
    if token_ids:
        raise InvalidRequest("must be token ids or a list of prompts, not both", field=field)
    return tuple(item if isinstance(item, str) else tuple(item) for item in given if not isinstance(item, int))


def _at_most_20(field: str, value: int) -> int:
    if not 0 <= value <= MAX_LOGPROBS:
        raise InvalidRequest(f"must be from 0 to {MAX_LOGPROBS}, got {value}", field=field)
    return value
