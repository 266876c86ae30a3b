"""Wire dialects.

Each one parses bodies into a `GenerationRequest` and a formatter, and renders errors in its own format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from formatters.openai.chat import ChatJsonLinesFormatter, ChatSseFormatter
from formatters.openai.completions import CompletionJsonLinesFormatter, CompletionSseFormatter
from lmi_handlers.apis.base import Dialect, Payload
from lmi_handlers.apis.lmi.dialect import LmiDialect
from lmi_handlers.apis.lmi.dynamic import LmiDynamicDialect
from lmi_handlers.apis.mindie.dialect import MindieDialect
from lmi_handlers.apis.openai.body import DEFAULT_COMPLETION_TOKENS
from lmi_handlers.apis.openai.dialect import ChatDialect, CompletionsDialect
from lmi_handlers.apis.tgi.dialect import CompatDialect, TgiDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.media.images import image_loader
from lmi_handlers.serving.parsed import ModelFacts
from lmi_handlers.text.output_parsers.reasoning import reasoning_format
from lmi_handlers.text.output_parsers.tool_formats import choose_tool_format

NONE: Mapping[str, float] = MappingProxyType({})


def default_completion_tokens(properties: ServingProperties) -> int | None:
    """Default `max_tokens` of text completions: OpenAI's 16, or with `option.tgi_compat` None (as many as fit)."""
    return None if properties.tgi_compat else DEFAULT_COMPLETION_TOKENS


def root_dialect(properties: ServingProperties) -> TgiDialect:
    """Return the dialect of `/`, which `option.dialect` selects."""
    dialects = {"tgi": CompatDialect, "mindie": MindieDialect}
    return dialects[properties.dialect](properties)


class InvocationsDialects:
    """The dialects of `/invocations` and `/predictions`: OpenAI's for OpenAI bodies, `native` for all others."""

    def __init__(
        self,
        properties: ServingProperties,
        facts: Callable[[], ModelFacts],
        sampled_defaults: Mapping[str, float] = NONE,
    ) -> None:
        """Raises `ConfigError` as `invocations_dialect` does."""
        self.native = invocations_dialect(properties, sampled_defaults)
        budget = Budget.of(properties)
        asynchronous = properties.has_asynchronous_handler
        lines = asynchronous or properties.output_formatter == "jsonlines"
        self._chat = ChatDialect(
            facts,
            budget=budget,
            tool_call_parser=properties.tool_call_parser,
            reasoning_parser=properties.reasoning_parser,
            enable_reasoning=properties.enable_reasoning,
            stream_formatter=ChatJsonLinesFormatter if lines else ChatSseFormatter,
        )
        self._completions = CompletionsDialect(
            facts,
            budget=budget,
            default_max_tokens=default_completion_tokens(properties),
            stream_formatter=CompletionJsonLinesFormatter if asynchronous else CompletionSseFormatter,
        )

    def of(self, payload: Payload) -> Dialect:
        """Choose by field: `inputs` is the native dialect, `messages` a chat, `prompt` a text completion."""
        data = payload.data
        if payload.content_type == "text/plain" or (b'"messages"' not in data and b'"prompt"' not in data):
            return self.native  # decoded only once, by the dialect
        try:
            fields = msgspec.json.decode(data, type=_Fields)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.native
        if fields.inputs is not msgspec.UNSET:
            return self.native
        if fields.messages is not msgspec.UNSET:
            return self._chat
        return self.native if fields.prompt is msgspec.UNSET else self._completions


class _Fields(msgspec.Struct):
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def invocations_dialect(properties: ServingProperties, sampled_defaults: Mapping[str, float] = NONE) -> Dialect:
    """Return the dialect of `/invocations` for bodies that are not OpenAI's.

    Raises `ConfigError` if one of its options is wrong.

    `sampled_defaults` are LMI's sampling defaults for the backend in use. They apply to requests with `do_sample` true.
    """
    if properties.tgi_compat:
        if properties.output_formatter is not None:
            raise ConfigError(
                f"option.output_formatter={properties.output_formatter} conflicts with option.tgi_compat=true: "
                "TGI's requests choose between its two formats with stream"
            )
        return root_dialect(properties)
    dialect = LmiDialect if properties.rolling else LmiDynamicDialect
    return dialect(properties, sampled_defaults)


def check_dialects(properties: ServingProperties, sampled_defaults: Mapping[str, float] = NONE) -> None:
    """Raise `ConfigError` if an option of a dialect, or one for tools, images or reasoning, is wrong."""
    invocations_dialect(properties, sampled_defaults)
    choose_tool_format("", properties.tool_call_parser)
    image_loader(properties)
    if properties.reasoning_parser is not None:
        reasoning_format(properties.reasoning_parser)
