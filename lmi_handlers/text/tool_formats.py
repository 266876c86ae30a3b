"""The tags that a family of models writes around its tool calls, and which family a model is of."""

from __future__ import annotations

import msgspec

from lmi_handlers.errors import ConfigError


class Tag(msgspec.Struct, frozen=True):
    """What stands in front of calls, and what may stand behind them.

    `known_names_only`: such text is common without calls, so it is one only with the name of a function that was offered.
    """

    open: str
    close: str = ""
    known_names_only: bool = False


class Format(msgspec.Struct, frozen=True):
    """How a family of models marks its calls.

    `bare` are the characters with which a call may also begin at the start of a line, without a tag, and then only with
    the name of a function that was offered.
    """

    name: str
    tags: tuple[Tag, ...]
    bare: str = ""


_TOOL_CALL = Tag("<tool_call>", "</tool_call>")
_TOOL_CALLS = Tag("[TOOL_CALLS]")
_FENCES = (Tag("```json", "```", known_names_only=True), Tag("```", "```", known_names_only=True))

FORMATS = {
    entry.name: entry
    for entry in (
        Format("hermes", (_TOOL_CALL,)),
        Format("qwen3_xml", (_TOOL_CALL,), bare="<"),
        Format("mistral", (_TOOL_CALLS,)),
        Format("llama3_json", (Tag("<|python_tag|>"), *_FENCES), bare="{["),
        Format("pythonic", (Tag("<|python_start|>", "<|python_end|>"), Tag("<|python_tag|>")), bare="{["),
        Format("granite", (Tag("<|tool_call|>"), _TOOL_CALL), bare="["),
        Format("internlm", (Tag("<|action_start|><|plugin|>", "<|action_end|>"),)),
        Format("jamba", (Tag("<tool_calls>", "</tool_calls>"),)),
        Format("olmo3", (Tag("<function_calls>", "</function_calls>"),)),
        Format("phi4_mini_json", (Tag("functools"),)),
        Format("json", (_TOOL_CALL, _TOOL_CALLS, *_FENCES), bare="{["),
    )
}
"""By the name that vLLM's `--tool-call-parser` has for it; `json` is ours, for models of no family."""

_ALIASES = {
    "granite4": "hermes",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "qwen3_coder": "qwen3_xml",
    "xlam": "json",
}

# The first one that a template has decides: Qwen3-Coder's has Hermes' tag too, Llama 4's may have Llama 3's.
_MARKERS = (
    ("<function=", "qwen3_xml"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_call|>", "granite"),
    ("<tool_calls>", "jamba"),
    ("<tool_call>", "hermes"),
    ("<function_calls>", "olmo3"),
    ("<|action_start|>", "internlm"),
    ("functools[", "phi4_mini_json"),
    ("<|python_start|>", "pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary', "llama3_json"),
)


def choose_format(chat_template: str, option: str | None) -> Format:
    """Return the format that `option` names, else the one whose marks `chat_template` has, else `json`.

    Raises `ConfigError` for an unknown name.
    """
    if option is None:
        return FORMATS[next((name for marker, name in _MARKERS if marker in chat_template), "json")]
    name = _ALIASES.get(option, option)
    if name not in FORMATS:
        known = ", ".join(sorted({*FORMATS, *_ALIASES}))
        raise ConfigError(f"unknown option.tool_call_parser {option!r}; known: {known}")
    return FORMATS[name]
