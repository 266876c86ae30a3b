"""Anthropic's bodies for messages and for counting tokens, and their translation to that of chat completions.

Source: Anthropic's API reference, "Messages" and "Count tokens"; Amazon Bedrock's user guide for `anthropic_version`.
null means absent.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from lmi_handlers.apis.anthropic.blocks import InputMessage, InputText, conversation
from lmi_handlers.apis.openai.body import ChatCompletionBody, JsonSchemaFormat
from lmi_handlers.apis.openai.responses_items import decode_by_type
from lmi_handlers.apis.openai.tools import DeclaredName, Function, FunctionName, Tool, ToolChoice
from lmi_handlers.apis.parameters import Affects, Param, fields_of, values_of
from lmi_handlers.apis.structured_outputs import NamedSchema
from lmi_handlers.config.budget import MAX_NAME_CHARACTERS, Budget
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.json_types import one_of

MIN_THINKING_TOKENS = 1024

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]


class CustomTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `input_schema` is a JSON schema."""

    name: DeclaredName
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None

    def chat(self) -> Tool:
        """Return the tool as in a chat."""
        return Tool(Function(self.name, self.description, self.input_schema, strict=self.strict))


class ChooseAuto(msgspec.Struct, frozen=True, tag_field="type", tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class ChooseAny(msgspec.Struct, frozen=True, tag_field="type", tag="any"):
    """The model must call a tool. `disable_parallel_tool_use` limits it to one call."""

    disable_parallel_tool_use: bool | None = None


class ChooseTool(msgspec.Struct, frozen=True, tag_field="type", tag="tool"):
    """The model must call this tool, once."""

    name: str
    disable_parallel_tool_use: bool | None = None


class ChooseNone(msgspec.Struct, frozen=True, tag_field="type", tag="none"):
    """The model must not call a tool."""


class ThinkingEnabled(msgspec.Struct, frozen=True, tag_field="type", tag="enabled"):
    """The model thinks first, `budget_tokens` at most."""

    budget_tokens: Annotated[int, msgspec.Meta(ge=MIN_THINKING_TOKENS)]


class ThinkingAdaptive(msgspec.Struct, frozen=True, tag_field="type", tag="adaptive"):
    """The model decides how long to think."""


class ThinkingDisabled(msgspec.Struct, frozen=True, tag_field="type", tag="disabled"):
    """The model does not think, as far as its chat template lets it."""


class OutputSchema(msgspec.Struct, frozen=True):
    """A JSON schema for the text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """The form of the text. `effort` is for the chat template, as `reasoning_effort`."""

    format: OutputSchema | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class MessageMetadata(msgspec.Struct, frozen=True):
    """Who asks. It is ignored."""

    user_id: Name | None = None


CustomToolField = Annotated[msgspec.Raw, one_of("A tool that the client runs.", "CustomTool")]


class Ignored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that clients send and that mean nothing here. Any other unknown field is refused."""

    anthropic_beta: Any = None
    betas: Any = None
    billing_policy: Any = None
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    service_tier: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def ignored(self) -> tuple[str, ...]:
        """Return the names of those that are present."""
        return tuple(name for name in Ignored.__struct_fields__ if getattr(self, name) is not None)


class CountTokensBody(Ignored, frozen=True, kw_only=True):
    """The body of `/v1/messages/count_tokens`: the fields that make up the prompt."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[InputText] | None = None
    tools: list[CustomToolField] | None = None
    tool_choice: ChooseAuto | ChooseAny | ChooseTool | ChooseNone | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None

    def check(self, budget: Budget) -> None:
        """Check every list and text. Raises `InvalidRequest`."""
        budget.check_fields(self)
        if isinstance(self.system, list):
            budget.check_parts("system", self.system)

    def chat(self, *, system_first: bool, **fields: Any) -> tuple[ChatCompletionBody, list[str]]:
        """Return the same request as a chat, with these `fields`, and the field of each of its messages.

        With `system_first`, instructions in the middle of the conversation go to its beginning.
        Raises `InvalidRequest`; tools that Anthropic's servers run are not supported.
        """
        placed = conversation(self.system, self.messages, system_first=system_first)
        tools = [
            decode_by_type(tool, f"tools[{i}]", _TOOLS, "custom").chat() for i, tool in enumerate(self.tools or ())
        ]
        choice, output = self.tool_choice, self.output_config or OutputConfig()
        serial = not isinstance(choice, ChooseNone | None) and choice.disable_parallel_tool_use
        schema = None if output.format is None else NamedSchema(output.format.schema, strict=True)
        computed: dict[str, Any] = {
            "messages": [message for _, message in placed],
            "tools": tools,
            "tool_choice": _chat_choice(choice),
            "parallel_tool_calls": False if serial else None,
            "response_format": None if schema is None else JsonSchemaFormat(json_schema=schema),
            "reasoning_effort": output.effort,
            "chat_template_kwargs": {"enable_thinking": self.thinks},
            "include_reasoning": self.thinks,
        }
        body = ChatCompletionBody(**{**values_of(self, ChatCompletionBody), **computed, **fields})
        return body, [field for field, _ in placed]

    @property
    def thinks(self) -> bool:
        """Thinking, and whether it is shown. As in Anthropic's API, only if that is asked for."""
        return isinstance(self.thinking, ThinkingEnabled | ThinkingAdaptive)


class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    """The body of `/v1/messages`. `metadata` is ignored, and so is what `anthropic_version` says. `cache_salt` is vLLM's."""

    max_tokens: int
    stop_sequences: Annotated[list[str], Param("stop")] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: Annotated[MessageMetadata, Affects()] | None = None
    anthropic_version: Name | None = None

    cache_salt: str | None = None

    def check(self, budget: Budget) -> None:
        """Check every list and text, and the thinking budget. Raises `InvalidRequest`."""
        super().check(budget)
        if isinstance(self.thinking, ThinkingEnabled) and self.thinking.budget_tokens >= self.max_tokens:
            raise InvalidRequest(
                f"must be less than max_tokens ({self.max_tokens}), got {self.thinking.budget_tokens}",
                field="thinking.budget_tokens",
            )

    def message_chat(self, *, system_first: bool) -> tuple[ChatCompletionBody, list[str]]:
        """Return `chat` with the parameters of the answer."""
        budget = self.thinking.budget_tokens if isinstance(self.thinking, ThinkingEnabled) else None
        return self.chat(system_first=system_first, thinking_token_budget=budget)


def client_name(field: str) -> str:
    """Return the name in Anthropic's bodies of a chat's field."""
    return _NAMES.get(field) or re.sub(r"\.image_url$", ".source", fields_of(MessagesBody, field)[0])


def _chat_choice(choice: ChooseAuto | ChooseAny | ChooseTool | ChooseNone | None) -> str | ToolChoice | None:
    match choice:
        case ChooseTool():
            return ToolChoice(FunctionName(choice.name))
        case ChooseAny():
            return "required"
        case ChooseNone():
            return "none"
    return None


_TOOLS = {"custom": CustomTool}
_NAMES = {
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}


class InvokedMessagesBody(MessagesBody, frozen=True, kw_only=True):
    """The same body on a route of every API. The field `anthropic_version` says that it is Anthropic's."""

    anthropic_version: str
