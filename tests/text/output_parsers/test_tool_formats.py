"""How the tool call format of a model is chosen: by option, or from the chat template."""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import pytest

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.output_parsers.tool_formats import TOOL_FORMATS, choose_tool_format


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>\n' }}{{ tool_call.arguments | tojson }}", "hermes"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=x>", "qwen3_xml"),
        ("{{- '[TOOL_CALLS] [' }}", "mistral"),
        ('{{- "<|python_tag|>" + tool_call.name + ".call(" }}', "llama3_json"),
        ("""Respond in the format {"name": function name, "parameters": dictionary of argument name""", "llama3_json"),
        ("{{- '<|python_start|>' }} or <|python_tag|>", "pythonic"),
        ("Respond in the format [func_name1(params_name1=params_value1, ...), func_name2(params)]", "pythonic"),
        ("{{ '<|tool_call|>' }}", "granite"),
        ("<|action_start|><|plugin|>", "internlm"),
        ("<tool_calls>[", "jamba"),
        ("<function_calls>\n", "olmo3"),
        ("<tool_call>{{ name }}<tool_sep>", "hy_v3"),
        ("<ifm|tool_calls>\n<ifm|tool_call>", "k2_horizon"),
        ("<|open|>tools<|sep|>", "kimi_k3"),
        ("{%- set ns_token = ']<]minimax[>[' %}<tool_call>", "minimax_m3"),
        ("<|tools_prefix|>[", "apertus"),
        ("<|START_ACTION|>[", "cohere_command3"),
        ("<|plamo:begin_tool_requests:plamo|>", "plamo3"),
        ('<function name="function_name"><param name="', "minicpm5"),
        ('functools[{"name": [function name]', "phi4_mini_json"),
        ("toolcall_begin_token = '<seed:tool_call>' ... \\n<function=example_function_name>", "seed_oss"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax_m2"),
        ("<dots_function_call>\n<invoke name=", "dots"),
        ('{%- set dsml_token = "｜DSML｜" -%}', "deepseek_v32"),
        ("{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name']", "deepseek_v3"),
        ("{{'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'", "deepseek_v31"),
        ("<|tool_calls_section_begin|>{%- for", "kimi_k2"),
        ("{{- '<｜tool_calls_begin｜>\\n' }}", "step3"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", "hermes"),
        ("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma4"),
        ("{{- '<start_function_call>call:' -}}", "functiongemma"),
        ('{{- "functions." + tool_call.name + "<|channel|>commentary " }}', "openai"),
        ('{{- "<|tool_call_start|>[" + (calls | join(", "))', "lfm2"),
        ("List of tools: <|tool_list_start|>[", "lfm2"),
        ("<longcat_tool_call>", "longcat"),
        ("<|function_call_library|>", "granite-20b-fc"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "json"),
        ("", "json"),
    ],
)
def test_the_format_is_detected_from_the_chat_template(template: str, name: str) -> None:
    assert choose_tool_format(template, None).name == name


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *((name, name) for name in TOOL_FORMATS),
        ("qwen3_coder", "qwen3_xml"),
        ("llama4_pythonic", "pythonic"),
        ("llama4_json", "llama3_json"),
        ("xlam", "json"),
        ("granite4", "hermes"),
        ("glm45", "hermes"),
        ("ernie45", "hermes"),
        ("hunyuan_a13b", "jamba"),
        ("minimax", "jamba"),
        ("deepseek_v4", "deepseek_v32"),
        ("mimo", "qwen3_xml"),
        ("deepseek_v41", "deepseek_v32"),
        ("cohere_command4", "cohere_command3"),
        ("hy_v4", "hy_v3"),
    ],
)
def test_the_option_takes_precedence_over_the_template(option: str, name: str) -> None:
    assert choose_tool_format("[TOOL_CALLS]", option).name == name


def test_an_unknown_option_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'nope'.*hermes.*llama3_json.*mistral.*qwen3_coder"):
        choose_tool_format("", "nope")


def test_hunyuans_tags_have_the_suffix_of_the_template() -> None:
    for template in ("<tool_call:6124c78e>", "{{ '<arg_key:6124c78e>' }}"):
        form = choose_tool_format(template, "hy_v4")
        assert form.tags[0].close == "</tool_call:6124c78e>"
        assert form.named.parameter == "<arg_key:6124c78e>"
    assert choose_tool_format("<tool_call>", "hy_v4") == TOOL_FORMATS["hy_v3"]
