"""The tags that model families write around tool calls, and how to detect a model's family."""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import re

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.output_parsers.call_markup import GLM, Markup, after_a_name
from lmi_handlers.text.output_parsers.nested_markup import NAMESPACE


class Tag(msgspec.Struct, frozen=True):
    """`open` comes before calls, or begins one if it is `in_call`, and `close` may come after them.

    `known_names_only` is for tags that are also common without calls. The text after such a tag is a call only if it
    names an offered function.
    """

    open: str
    close: str = ""
    known_names_only: bool = False
    in_call: bool = False


class ToolFormat(msgspec.Struct, frozen=True):
    """The marks of calls of a family of models.

    `section` is an optional tag around a group of calls. Its marks are empty if the family has none. `bare` lists the
    characters that may start a call without a tag, at the start of a line. Such a call must name an offered function.
    `named` and `keyed` are as for `CallReader`. `framing` are marks of a message's parts, which are left out.
    """

    name: str
    tags: tuple[Tag, ...]
    bare: str = ""
    section: Tag = Tag("")
    named: Markup = GLM
    keyed: bool = False
    framing: tuple[str, ...] = ()


_TOOL_CALL = Tag("<tool_call>", "</tool_call>")
_TOOL_CALLS = Tag("[TOOL_CALLS]")
_FENCES = (Tag("```json", "```", known_names_only=True), Tag("```", "```", known_names_only=True))


def _hunyuan(suffix: str) -> ToolFormat:
    """Return the format of Hunyuan 3 and 4. A checkpoint may add a `suffix` to the names of all tags."""
    return ToolFormat(
        "hy_v3",
        (Tag(f"<tool_call{suffix}>", f"</tool_call{suffix}>"),),
        section=Tag(f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),
        named=after_a_name(suffix=suffix, separator="tool_sep"),
    )


_DEEPSEEK_SECTION = Tag("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

TOOL_FORMATS = {
    entry.name: entry
    for entry in (
        ToolFormat("hermes", (_TOOL_CALL,)),
        ToolFormat("qwen3_xml", (_TOOL_CALL,), bare="<"),
        ToolFormat("mistral", (_TOOL_CALLS,)),
        ToolFormat("llama3_json", (Tag("<|python_tag|>"), *_FENCES), bare="{["),
        ToolFormat("pythonic", (Tag("<|python_start|>", "<|python_end|>"), Tag("<|python_tag|>")), bare="{["),
        ToolFormat("granite", (Tag("<|tool_call|>"), _TOOL_CALL), bare="["),
        ToolFormat("internlm", (Tag("<|action_start|><|plugin|>", "<|action_end|>"),)),
        ToolFormat("jamba", (Tag("<tool_calls>", "</tool_calls>"),)),
        ToolFormat("olmo3", (Tag("<function_calls>", "</function_calls>"),)),
        ToolFormat("phi4_mini_json", (Tag("functools"),)),
        ToolFormat("granite-20b-fc", (Tag("<function_call>"),)),
        ToolFormat("longcat", (Tag("<longcat_tool_call>", "</longcat_tool_call>"),)),
        ToolFormat("lfm2", (Tag("<|tool_call_start|>", "<|tool_call_end|>"),)),
        ToolFormat("seed_oss", (Tag("<seed:tool_call>", "</seed:tool_call>"),), bare="<"),
        ToolFormat("minimax_m2", (Tag("<minimax:tool_call>", "</minimax:tool_call>"),), bare="<"),
        ToolFormat("dots", (Tag("<dots_function_call>", "</dots_function_call>"),), bare="<"),
        ToolFormat(
            "gigachat3",
            (Tag("function call<|role_sep|>\n"), Tag("<|function_call|>")),
            section=Tag("<|message_sep|>\n\n"),
        ),
        ToolFormat(
            "deepseek_v3",
            (Tag("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),),
            section=_DEEPSEEK_SECTION,
        ),
        ToolFormat("deepseek_v31", (Tag("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),), section=_DEEPSEEK_SECTION),
        ToolFormat(
            "deepseek_v32",
            (
                Tag("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
                *(Tag(f"<｜DSML｜{name}>", "</｜DSML｜tool_calls>") for name in ("tool_calls", "toolcalls", "tool")),
                Tag("<｜DSML｜ calls>", "</｜DSML｜ calls>"),  # 4.1
            ),
            bare="<",
        ),
        ToolFormat(
            "kimi_k2",
            (Tag("<|tool_call_begin|>", "<|tool_call_end|>"),),
            section=Tag("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
        ToolFormat(
            "step3",
            (Tag("<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>"),),
            section=Tag("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        ),
        ToolFormat(
            "openai",
            (Tag("<|channel|>commentary to=functions.", "<|call|>"), Tag("to=functions.", "<|call|>")),
            section=Tag("<|start|>assistant"),
        ),
        ToolFormat("functiongemma", (Tag("<start_function_call>", "<end_function_call>"),)),
        ToolFormat("apertus", (Tag("<|tools_prefix|>", "<|tools_suffix|>"),), keyed=True),
        ToolFormat("cohere_command3", (Tag("<|START_ACTION|>", "<|END_ACTION|>"),)),
        ToolFormat(
            "plamo3",
            (
                Tag(
                    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
                    "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
                ),
            ),
            section=Tag("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
        ),
        ToolFormat("minimax_m3", (Tag(f"{NAMESPACE}<tool_call>", f"{NAMESPACE}</tool_call>"),)),
        ToolFormat("minicpm5", (Tag('<function name="', known_names_only=True, in_call=True),)),
        ToolFormat(
            "k2_horizon",
            (Tag("<ifm|tool_call>", "</ifm|tool_call>"),),
            section=Tag("<ifm|tool_calls>", "</ifm|tool_calls>"),
            named=after_a_name("ifm|", type_tag="arg_type"),
        ),
        _hunyuan(""),
        ToolFormat(
            "kimi_k3",
            (Tag('<|open|>call tool="', in_call=True),),
            section=Tag("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
            framing=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        ),
        ToolFormat(
            "inkling",
            (Tag("<|content_invoke_tool_json|>", "<|end_message|>"),),
            framing=("<|message_model|>", "<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>"),
        ),
        ToolFormat("muse_glimmer", (Tag("<atem:function_calls>", "</atem:function_calls>"),), bare="<"),
        ToolFormat("gemma4", (Tag("<|tool_call>", "<tool_call|>"),)),
        ToolFormat("json", (_TOOL_CALL, _TOOL_CALLS, *_FENCES), bare="{["),
    )
}
"""The formats by their name in vLLM's `--tool-call-parser`. `json` is ours, for models of unknown families."""

_ALIASES = {
    "cohere_command4": "cohere_command3",
    "deepseek_v4": "deepseek_v32",
    "deepseek_v41": "deepseek_v32",
    "ernie45": "hermes",
    "glm45": "hermes",
    "glm47": "hermes",
    "granite4": "hermes",
    "hunyuan_a13b": "jamba",
    "hy_v4": "hy_v3",
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
"""Families that use the tags of another one. The syntax inside the tags may differ, since it is detected separately."""

# The first marker found in the template decides. Order matters: Qwen3-Coder's template also has Hermes' tag, Seed's
# also has Qwen3-Coder's, and Llama 4's may have Llama 3's.
_MARKERS = (
    ("<tool_sep", "hy_v3"),
    ("<|open|>", "kimi_k3"),
    ("<|content_invoke_tool_json|>", "inkling"),
    ("<atem:function_calls>", "muse_glimmer"),
    ("<ifm|tool_calls>", "k2_horizon"),
    ("<|tools_prefix|>", "apertus"),
    ("<|START_ACTION|>", "cohere_command3"),
    ("<|plamo:begin_tool_requests:plamo|>", "plamo3"),
    ('<function name="', "minicpm5"),
    (NAMESPACE, "minimax_m3"),
    ("<seed:tool_call>", "seed_oss"),
    ("<function=", "qwen3_xml"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<dots_function_call>", "dots"),
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


def choose_tool_format(chat_template: str, option: str | None) -> ToolFormat:
    """Return the format that `option` names. Without it, detect the format from `chat_template`, or default to `json`.

    Raises `ConfigError` if the name is unknown.
    """
    if option is None:
        name = next((name for marker, name in _MARKERS if marker in chat_template), "json")
    else:
        name = _ALIASES.get(option, option)
    if name not in TOOL_FORMATS:
        raise ConfigError(f"unknown option.tool_call_parser {option!r}; known: {', '.join(tool_call_parser_names())}")
    return _hunyuan(hunyuan_suffix(chat_template)) if name == "hy_v3" else TOOL_FORMATS[name]


def hunyuan_suffix(chat_template: str) -> str:
    """Return the suffix of the names of Hunyuan's tags, such as `:6124c78e`, or "" if there is none."""
    found = _HUNYUAN_SUFFIX.search(chat_template)
    return found.group(1) if found else ""


_HUNYUAN_SUFFIX = re.compile(r"<(?:think|tool_calls?|arg_key|arg_value)(:[^\s>'\"]+)>")


def tool_call_parser_names() -> list[str]:
    """Return the values that `option.tool_call_parser` accepts."""
    return sorted({*TOOL_FORMATS, *_ALIASES})
