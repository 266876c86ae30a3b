"""OpenAI's body for responses, and its translation to that of chat completions.

Sources: OpenAI's API reference, and vLLM for the additional parameters. null means absent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from lmi_handlers.apis.openai.body import (
    MAX_LOGPROBS,
    ChatCompletionBody,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
)
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.apis.openai.responses_items import (
    ITEMS,
    InputMessage,
    Item,
    continues,
    conversation,
    decode_by_type,
)
from lmi_handlers.apis.openai.tools import DeclaredName, Function, FunctionName, Tool, ToolChoice
from lmi_handlers.apis.parameters import Param, fields_of, values_of
from lmi_handlers.apis.structured_outputs import NamedSchema, StructuredOutputsBody
from lmi_handlers.config.budget import MAX_NAME_CHARACTERS
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.json_types import one_of

LOGPROBS = "message.output_text.logprobs"

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class FunctionTool(msgspec.Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON schema."""

    type: Literal["function"]
    name: DeclaredName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def chat(self) -> Tool:
        """Return the tool as in a chat."""
        return Tool(Function(self.name, self.description, self.parameters, strict=self.strict))


class FunctionChoice(msgspec.Struct, frozen=True):
    """Names the function that must be called. No other choices by object are supported."""

    type: Literal["function"]
    name: str


class PlainText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """No constraint."""

    def chat(self) -> None:
        """Return None."""


class JsonObject(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object."""

    def chat(self) -> ResponseFormat:
        """Return the format as in a chat."""
        return JsonObjectFormat()


class JsonSchema(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """A JSON schema. It is always enforced; if `strict` is false, objects may have undeclared properties."""

    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None

    def chat(self) -> ResponseFormat:
        """Return the format as in a chat."""
        return JsonSchemaFormat(json_schema=NamedSchema(self.schema, self.strict))


class ResponseText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The format of the text. `verbosity` is ignored."""

    format: PlainText | JsonObject | JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(msgspec.Struct, frozen=True):
    """The amount of thinking. The effort is for the chat template; "none" also turns its `enable_thinking` off.

    There are no summaries.
    """

    effort: Name | None = None
    summary: Name | None = None


InputItem = Annotated[
    msgspec.Raw,
    one_of("An item of the conversation.", "InputMessage", "InputReasoning", "InputCall", "InputCallOutput"),
]
ResponseTool = Annotated[msgspec.Raw, one_of("A function.", "FunctionTool")]
ResponseToolChoice = Literal["none", "auto", "required"] | FunctionChoice


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/v1/responses`.

    `user`, `safety_identifier`, `prompt_cache_key` and `metadata` are repeated in the answer. `store`, `service_tier`
    and `max_tool_calls` are accepted and ignored.
    """

    input: str | list[InputItem]
    instructions: str | None = None
    model: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int, Param("max_tokens")] | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: ResponseText | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Includable], msgspec.Meta(max_length=8)] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    store: bool | None = None
    background: bool | None = None
    service_tier: Name | None = None
    max_tool_calls: int | None = None

    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[int, float] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputsBody | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None

    def items(self) -> list[Item]:
        """Return the input. Raises `InvalidRequest`."""
        if isinstance(self.input, str):
            return [InputMessage("user", self.input)]
        return [decode_by_type(item, f"input[{place}]", ITEMS, "message") for place, item in enumerate(self.input)]

    def function_tools(self) -> list[FunctionTool]:
        """Return the tools. Raises `InvalidRequest`; hosted tools such as web search are not supported."""
        kinds = {"function": FunctionTool}
        return [decode_by_type(tool, f"tools[{i}]", kinds, "function") for i, tool in enumerate(self.tools or ())]

    def chat(self, tools: list[FunctionTool]) -> tuple[ChatCompletionBody, list[str]]:
        """Return the same request as a chat, and the field of each of its messages. Raises `InvalidRequest`."""
        items = self.items()
        if not items:
            raise InvalidRequest("must not be empty", field="input")
        placed = conversation(items)
        if self.instructions is not None:
            placed.insert(0, ("instructions", Message("system", self.instructions)))
        choice, form = self.tool_choice, None if self.text is None else self.text.format
        shows_logprobs = LOGPROBS in (self.include or ())
        effort = None if self.reasoning is None else self.reasoning.effort
        computed: dict[str, Any] = {
            "messages": [message for _, message in placed],
            "logprobs": shows_logprobs,
            "top_logprobs": self.top_logprobs if shows_logprobs else None,
            "response_format": None if form is None else form.chat(),
            "tools": [tool.chat() for tool in tools],
            "tool_choice": ToolChoice(FunctionName(choice.name)) if isinstance(choice, FunctionChoice) else choice,
            "reasoning_effort": effort,
            "continue_final_message": continues(items),
        }
        body = ChatCompletionBody(**{**values_of(self, ChatCompletionBody), **computed})
        return body, [field for field, _ in placed]


def client_name(field: str) -> str:
    """Return the name in a response's body of a chat's field."""
    return _NAMES.get(field) or fields_of(ResponseBody, field)[0]


_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
