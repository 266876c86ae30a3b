"""The tags that a family of models writes around its tool calls, and which family a model is of."""

# ruff: noqa: RUF001  DeepSeek's tokens have full-width bars.

from __future__ import annotations

import msgspec

from lmi_handlers.core.errors import ConfigError


class Tag(msgspec.Struct, frozen=True):
    """What stands in front of calls, and what may stand behind them.

    `known_names_only`: such text is common without calls, so it is one only with the name of a function that was offered.
    """

    open: str
    close: str = ""
    known_names_only: bool = False


class Format(msgspec.Struct, frozen=True):
    """How a family of models marks its calls.

    `section` may stand around calls that are made at once; its marks are empty where there is none. `bare` are the
    characters with which a call may also begin at the start of a line, without a tag, and then only with the name of a
    function that was offered.
    """

    name: str
    tags: tuple[Tag, ...]
    bare: str = ""
    section: Tag = Tag("")


_TOOL_CALL = Tag("<tool_call>", "</tool_call>")
_TOOL_CALLS = Tag("[TOOL_CALLS]")
_FENCES = (Tag("```json", "```", known_names_only=True), Tag("```", "```", known_names_only=True))
_DEEPSEEK_SECTION = Tag("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

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
        Format("granite-20b-fc", (Tag("<function_call>"),)),
        Format("longcat", (Tag("<longcat_tool_call>", "</longcat_tool_call>"),)),
        Format("lfm2", (Tag("<|tool_call_start|>", "<|tool_call_end|>"),)),
        Format("seed_oss", (Tag("<seed:tool_call>", "</seed:tool_call>"),), bare="<"),
        Format("minimax_m2", (Tag("<minimax:tool_call>", "</minimax:tool_call>"),), bare="<"),
        Format(
            "deepseek_v3",
            (Tag("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),),
            section=_DEEPSEEK_SECTION,
        ),
        Format("deepseek_v31", (Tag("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),), section=_DEEPSEEK_SECTION),
        Format(
            "deepseek_v32",
            (
                Tag("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
                Tag("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
            ),
            bare="<",
        ),
        Format(
            "kimi_k2",
            (Tag("<|tool_call_begin|>", "<|tool_call_end|>"),),
            section=Tag("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
        Format(
            "step3",
            (Tag("<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>"),),
            section=Tag("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        ),
        Format(
            "openai",
            (Tag("<|channel|>commentary to=functions.", "<|call|>"), Tag("to=functions.", "<|call|>")),
            section=Tag("<|start|>assistant"),
        ),
        Format("functiongemma", (Tag("<start_function_call>", "<end_function_call>"),)),
        Format("gemma4", (Tag("<|tool_call>", "<tool_call|>"),)),
        Format("json", (_TOOL_CALL, _TOOL_CALLS, *_FENCES), bare="{["),
    )
}
"""By the name that vLLM's `--tool-call-parser` has for it; `json` is ours, for models of no family."""

_ALIASES = {
    "deepseek_v4": "deepseek_v32",
    "ernie45": "hermes",
    "glm45": "hermes",
    "glm47": "hermes",
    "granite4": "hermes",
    "hunyuan_a13b": "jamba",
    "ling3": "hermes",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "mimo": "qwen3_xml",
    "minimax": "jamba",
    "poolside_v1": "hermes",
    "qwen3_coder": "qwen3_xml",
    "qwen3_json": "hermes",
    "step3p5": "qwen3_xml",
    "xlam": "json",
}
"""Families with the tags of another: what is inside them tells its kind by itself."""

# The first one that a template has decides: Qwen3-Coder's has Hermes' tag too, Seed's has Qwen3-Coder's, Llama 4's may
# have Llama 3's.
_MARKERS = (
    ("<seed:tool_call>", "seed_oss"),
    ("<function=", "qwen3_xml"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("｜DSML｜", "deepseek_v32"),
    ("tool['type'] + '<｜tool▁sep｜>'", "deepseek_v3"),
    ("<｜tool▁sep｜>", "deepseek_v31"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<｜tool_calls_begin｜>", "step3"),
    ("<|channel|>commentary", "openai"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call>", "gemma4"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("<longcat_tool_call>", "longcat"),
    ("<|function_call_library|>", "granite-20b-fc"),
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
        raise ConfigError(f"unknown option.tool_call_parser {option!r}; known: {', '.join(names())}")
    return FORMATS[name]


def names() -> list[str]:
    """Return what `option.tool_call_parser` may be."""
    return sorted({*FORMATS, *_ALIASES})
