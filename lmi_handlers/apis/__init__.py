"""The wire contracts: a body becomes a `GenerationRequest` and a formatter, an error a response in the dialect's shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from formatters.openai_chat import ChatJsonLinesFormatter, ChatSseFormatter
from formatters.openai_completions import CompletionJsonLinesFormatter, CompletionSseFormatter
from lmi_handlers.apis.base import Dialect, ModelFacts, Payload
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
from lmi_handlers.text.reasoning import reasoning_format
from lmi_handlers.text.tool_formats import choose_format

NONE: Mapping[str, float] = MappingProxyType({})


def default_completion_tokens(properties: ServingProperties) -> int | None:
    """How long a text completion may be that sets no `max_tokens`: OpenAI's 16, or what fits, on TGI's own terms."""
    return None if properties.tgi_compat else DEFAULT_COMPLETION_TOKENS


def root_dialect(properties: ServingProperties) -> TgiDialect:
    """What `/` speaks, by `option.dialect`."""
    dialects = {"tgi": CompatDialect, "mindie": MindieDialect}
    return dialects[properties.dialect](properties)


class InvocationsDialects:
    """What `/invocations` and `/predictions` speak: OpenAI's to a body in its form, to all others the `native` one."""

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
        """Return the dialect of a body: `inputs` is ours, `messages` a chat, `prompt` a text completion."""
        data = payload.data
        if payload.content_type == "text/plain" or (b'"messages"' not in data and b'"prompt"' not in data):
            return self.native  # without reading it twice
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
    """What `/invocations` speaks to a body that is not OpenAI's. Raises `ConfigError` where an option of the dialect is wrong.

    `sampled_defaults` are LMI's values, for the backend in use, where a request asks to sample and leaves the rest open.
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
    """Raise `ConfigError` where an option of a dialect, or of what its bodies may hold, is wrong."""
    invocations_dialect(properties, sampled_defaults)
    choose_format("", properties.tool_call_parser)
    image_loader(properties)
    if properties.reasoning_parser is not None:
        reasoning_format(properties.reasoning_parser)
