"""Tool calls and reasoning are read as vLLM's own parsers read them, whole and in pieces."""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_messages import cut, join, parse
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmi_handlers.text.output_parsers.channels import INKLING, MUSE_GLIMMER
from lmi_handlers.text.output_parsers.message import MessageDelta, PlainParser
from lmi_handlers.text.output_parsers.reasoning import choose_reasoning_format, with_reasoning
from lmi_handlers.text.output_parsers.tool_calls import TaggedCallParser
from lmi_handlers.text.output_parsers.tool_formats import choose_tool_format

Arguments = dict[str, Any]
Call = tuple[str, Arguments]
Render = Callable[[list[Call]], str]

PROPERTIES: dict[str, Arguments] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "place": {"type": "object"},
}
SCHEMA = {"type": "object", "properties": PROPERTIES}
NAMES = ("f", "get_weather", "web-search.v2")

# Characters of marks are among them, but no marks, and no spaces at the ends, which families treat differently.
TEXTS = st.text('ab é"😀\\/{}[]:,&1.', max_size=8).map(str.strip)
LEAVES = TEXTS | st.integers(-1000, 1000) | st.booleans()
VALUES = {
    # Text that is not JSON: some parsers of vLLM read any JSON as such, whatever the schema says.
    "text": TEXTS.map(lambda text: f"x{text}"),
    "count": st.integers(-(10**9), 10**9),
    "ratio": st.integers(-10000, 10000).map(lambda quarters: quarters / 4 + 0.125),
    "flag": st.booleans(),
    "items": st.lists(LEAVES, max_size=3),
    "place": st.dictionaries(st.text("abc", min_size=1, max_size=3), LEAVES, max_size=3),
}
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.fixed_dictionaries({}, optional=VALUES)), min_size=1, max_size=3)
WORDS = st.text("ab é.!,", max_size=12).map(str.strip)


def written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_texts(calls: list[Call]) -> list[Call]:
    """Calls whose lists and objects hold only texts: MiniMax M3's elements do not tell of other types.

    Texts in lists and objects are not empty, because an empty element of an unknown type may be anything.
    """
    return [
        (name, {key: _as_texts(value) if isinstance(value, list | dict) else value for key, value in arguments.items()})
        for name, arguments in calls
    ]


def _as_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_texts(item) for key, item in value.items()}
    return [_as_texts(item) for item in value] if isinstance(value, list) else f"x{written(value)}"


def type_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds[type(value)]


def joined(calls: list[Call], before: str, call: Callable[[str, Arguments], str], after: str) -> str:
    return before + "".join(call(*item) for item in calls) + after


def dsml(name: str, arguments: Arguments) -> str:
    parameters = "".join(
        f'<｜DSML｜ parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{written(value)}'
        "</｜DSML｜ parameter>\n"
        for key, value in arguments.items()
    )
    return f'<｜DSML｜ invoke name="{name}">\n{parameters}</｜DSML｜ invoke>\n'


def named(prefix: str, suffix: str, separator: str, *, typed: bool = False) -> Callable[[str, Arguments], str]:
    def call(name: str, arguments: Arguments) -> str:
        pairs = "".join(
            f"<{prefix}arg_key{suffix}>{key}</{prefix}arg_key{suffix}>"
            + (f"<{prefix}arg_type>{type_of(value)}</{prefix}arg_type>" if typed else "")
            + f"<{prefix}arg_value{suffix}>{written(value)}</{prefix}arg_value{suffix}>"
            for key, value in arguments.items()
        )
        return f"<{prefix}tool_call{suffix}>{name}{separator}{pairs}</{prefix}tool_call{suffix}>"

    return call


def plamo(name: str, arguments: Arguments) -> str:
    return (
        f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        f"<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{json.dumps(arguments)}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
    )


def minicpm(name: str, arguments: Arguments) -> str:
    def value(text: str) -> str:
        return f"<![CDATA[{text}]]>" if "&" in text or "é" in text else text

    parameters = "".join(f'<param name="{key}">{value(written(item))}</param>' for key, item in arguments.items())
    return f'<function name="{name}">{parameters}</function>\n'


def kimi(name: str, arguments: Arguments) -> str:
    pairs = "".join(
        f'<|open|>argument key="{key}" type="{type_of(value)}"<|sep|>{written(value)}<|close|>argument<|sep|>'
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{pairs}<|close|>call<|sep|>'


def minimax(name: str, arguments: Arguments) -> str:
    def element(key: str, value: Any) -> str:
        if isinstance(value, dict):
            inner = "".join(element(*item) for item in value.items())
        elif isinstance(value, list):
            inner = "".join(element("item", item) for item in value)
        else:
            inner = written(value)
        return f"{M3}<{key}>{inner}{M3}</{key}>"

    return f'{M3}<invoke name="{name}">' + "".join(element(*item) for item in arguments.items()) + f"{M3}</invoke>\n"


M3 = "]<]minimax[>["

RENDERS: list[tuple[str, str, Render]] = [
    ("deepseek_v41", "", lambda calls: joined(calls, "<｜DSML｜ calls>\n", dsml, "</｜DSML｜ calls>")),
    ("apertus", "", lambda calls: (
        f"<|tools_prefix|>{json.dumps([{name: arguments} for name, arguments in calls])}<|tools_suffix|>"
    )),
    ("plamo3", "", lambda calls: joined(
        calls, "<|plamo:begin_tool_requests:plamo|>", plamo, "<|plamo:end_tool_requests:plamo|>"
    )),
    ("kimi_k3", "", lambda calls: joined(
        calls, "<|open|>tools<|sep|>", kimi, "<|close|>tools<|sep|><|close|>message<|sep|>"
    )),
    ("minimax_m3", "", lambda calls: joined(
        calls, f"{M3}<tool_call>\n", minimax, f"{M3}</tool_call>"
    )),
    ("minicpm5", "", lambda calls: joined(calls, "", minicpm, "")),
    ("k2_horizon", "", lambda calls: joined(calls, "<ifm|tool_calls>", named("ifm|", "", ""), "</ifm|tool_calls>")),
    ("hy_v3", "", lambda calls: joined(
        calls, "<tool_calls>\n", named("", "", "<tool_sep>\n"), "\n</tool_calls>"
    )),
    ("hy_v4", "", lambda calls: joined(calls, "<tool_calls>", named("", "", ""), "</tool_calls>")),
    ("hy_v4", ":6124c78e", lambda calls: joined(
        calls, "<tool_calls:6124c78e>", named("", ":6124c78e", ""), "</tool_calls:6124c78e>"
    )),
]  # fmt: skip


def vllms_tokenizer(marks: list[str]) -> Any:
    """Return a byte-level tokenizer for vLLM, with `marks` as special tokens."""
    from transformers import PreTrainedTokenizerFast

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(sorted(alphabet))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]  # not typed


def vllms(name: str, suffix: str) -> Callable[[str], tuple[str, list[Call]]]:
    """Return a function that lets vLLM's parser read a text."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tags = ("tool_calls", "tool_call", "arg_key", "arg_value")
    tokenizer = vllms_tokenizer([f"<{slash}{tag}{suffix}>" for tag in tags for slash in ("", "/")])
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": tools}
    )
    parser = ToolParserManager.get_tool_parser(name)

    def read(text: str) -> tuple[str, list[Call]]:
        found = parser(tokenizer, request.tools).extract_tool_calls(text, request)
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]
        return (found.content or "").strip(), calls

    return read


@pytest.mark.needs("vllm")
@pytest.mark.filterwarnings("ignore")  # of vLLM's own libraries
@pytest.mark.parametrize(("name", "suffix", "render"), RENDERS)
def test_calls_are_read_as_vllm_reads_them(name: str, suffix: str, render: Render) -> None:
    read = vllms(name, suffix)

    @given(CALLS, WORDS, st.data())
    def compare(calls: list[Call], before: str, data: st.DataObject) -> None:
        calls = as_texts(calls) if name == "minimax_m3" else calls
        text = f"{before}\n{render(calls)}"
        form = choose_tool_format(f"<tool_calls{suffix}>", name)
        schemas = dict.fromkeys(NAMES, SCHEMA)
        message = parse(TaggedCallParser(form, schemas), text)
        content, found = message[0], [(name, json.loads(arguments)) for name, arguments in message[1]]
        theirs = read(text)
        assert found == theirs[1]
        assert found == calls
        assert content == before
        assert theirs[0] == ("" if name == "minicpm5" else before)  # vLLM drops what MiniCPM5 writes before a call
        assert parse(TaggedCallParser(form, schemas), *cut(text, data)) == message
        assert parse(TaggedCallParser(form, schemas), *text) == message

    compare()


REASONING = [
    ("hy_v3", "<think>", "</think>"),
    ("hy_v4", "<think>", "</think>"),
    ("hy_v4", "<think:6124c78e>", "</think:6124c78e>"),
    ("k2_horizon", "<ifm|think>", "</ifm|think>"),
    ("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("minimax_m2_append_think", "<think>", "</think>"),
]


@pytest.mark.needs("vllm")
@pytest.mark.filterwarnings("ignore")  # of vLLM's own libraries
@pytest.mark.parametrize(("name", "begin", "end"), REASONING)
def test_reasoning_is_read_as_vllm_reads_it(name: str, begin: str, end: str) -> None:
    """vLLM does not get the prompt, which ends with the mark that begins the reasoning, and keeps white space."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager

    request = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "?"}]})
    theirs = ReasoningParserManager.get_reasoning_parser(name)(
        vllms_tokenizer([begin, end]), chat_template_kwargs={"reasoning_effort": "high"}
    )
    form = choose_reasoning_format(begin, name, enabled=True)
    assert form is not None
    wrap = "<|open|>response<|sep|>{}<|close|>response<|sep|><|close|>message<|sep|>" if name == "kimi_k3" else "{}"

    @given(WORDS, WORDS, st.data())
    def compare(reasoning: str, answer: str, data: st.DataObject) -> None:
        text = f"{reasoning}\n{end}\n{wrap.format(answer)}"
        assert form is not None
        for pieces in ([text], cut(text, data), list(text)):
            reader = with_reasoning(form, begin, PlainParser())
            whole = sum(map(reader.feed, pieces), MessageDelta()) + reader.finish()
            found = theirs.extract_reasoning(text, request)
            assert (whole.reasoning, whole.content.strip()) == tuple((part or "").strip() for part in found)
            assert whole.reasoning == ("" if name == "minimax_m2_append_think" else reasoning)

    compare()


def inkling(reasoning: str, calls: list[Call], answer: str) -> tuple[str, str]:
    """Return the end of the prompt, and what the model writes after it."""
    parts = [f"<|content_thinking|>{reasoning}"]
    parts += [
        f"{name}<|content_invoke_tool_json|>{json.dumps({'name': name, 'args': arguments})}"
        for name, arguments in calls
    ]
    parts += [f"<|content_text|>{answer}"]
    return "<|message_model|>", "<|end_message|><|message_model|>".join(parts) + "<|end_message|>"


def muse(reasoning: str, calls: list[Call], answer: str) -> tuple[str, str]:
    parts = [f" to=self<|message|>{reasoning}<|eom|>"]
    for name, arguments in calls:
        emitted = name if "." in name else f"{name}.{name}"  # as the model does with its template
        parameters = "".join(
            f'<atem:parameter name="{key}">{written(value)}</atem:parameter>\n' for key, value in arguments.items()
        )
        parts.append(
            f' to={emitted}<|message|>\n<atem:function_calls>\n<atem:invoke name="{emitted}">\n{parameters}'
            "</atem:invoke>\n</atem:function_calls><|eom|>"
        )
    parts.append(f" to=user<|message|>{answer}<|eot|>")
    return "<|start|>assistant", "<|start|>assistant".join(parts)


@pytest.mark.needs("vllm")
@pytest.mark.filterwarnings("ignore")  # of vLLM's own libraries
@pytest.mark.parametrize(
    ("name", "render", "marks"), [("inkling", inkling, INKLING.marks), ("muse_glimmer", muse, MUSE_GLIMMER.marks)]
)
def test_channels_are_read_as_vllm_reads_them(
    name: str, render: Callable[[str, list[Call], str], tuple[str, str]], marks: tuple[str, ...]
) -> None:
    """Reasoning, calls and an answer, each in a message of its own."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": tools}
    )
    tokenizer = vllms_tokenizer(list(marks))
    form = choose_reasoning_format("", name, enabled=None)
    assert form is not None
    schemas = dict.fromkeys(NAMES, SCHEMA)

    @given(WORDS, CALLS | st.just([]), WORDS, st.data())
    def compare(reasoning: str, calls: list[Call], answer: str, data: st.DataObject) -> None:
        prompt, text = render(reasoning, calls, answer)
        reasons = ReasoningParserManager.get_reasoning_parser(name)(tokenizer)
        reads = ToolParserManager.get_tool_parser(name)(tokenizer, request.tools)
        theirs = reads.extract_tool_calls(text, request)
        assert [(call.function.name, json.loads(call.function.arguments)) for call in theirs.tool_calls] == calls
        assert (reasons.extract_reasoning(text, request)[0] or "") == reasoning
        for pieces in ([text], cut(text, data), list(text)):
            reader = with_reasoning(form, prompt, TaggedCallParser(choose_tool_format("", name), schemas))
            deltas = [*map(reader.feed, pieces), reader.finish()]
            content, found = join(deltas)
            assert "".join(delta.reasoning for delta in deltas) == reasoning
            assert [(name, json.loads(arguments)) for name, arguments in found] == calls
            assert content == answer
        plain = with_reasoning(form, prompt, PlainParser())
        assert answer in (plain.feed(text) + plain.finish()).content

    compare()
