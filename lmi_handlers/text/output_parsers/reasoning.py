"""Separates a model's reasoning from its answer, by the marks that the model's family uses.

Sources: the models' chat templates and model cards. The names are those of vLLM's `--reasoning-parser`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.output_parsers.channels import INKLING, MUSE_GLIMMER, ChannelParser
from lmi_handlers.text.output_parsers.cursor import SPACE, Cursor, Reading
from lmi_handlers.text.output_parsers.harmony import HarmonyParser
from lmi_handlers.text.output_parsers.message import MessageDelta, MessageParser, PlainParser
from lmi_handlers.text.output_parsers.tool_formats import hunyuan_suffix


class ReasoningFormat(msgspec.Struct, frozen=True):
    """The marks around the reasoning of a model family.

    Some families also mark the answer. Each tuple lists alternatives. `interrupts` end the reasoning too, and belong to
    the answer. `forced_end` is the text that ends the reasoning of a model
    that is to answer now, if more than the first of `ends`.
    """

    name: str
    begins: tuple[str, ...]
    ends: tuple[str, ...]
    answer_begins: tuple[str, ...] = ()
    answer_ends: tuple[str, ...] = ()
    forced_end: str = ""
    interrupts: tuple[str, ...] = ()


_HARMONY = "openai_gptoss"
_IN_CONTENT = "minimax_m2_append_think"
_THINK = (("<think>",), ("</think>",))
_EFFORTS = ("think", "think_fast", "think_faster")


def _hunyuan(suffix: str) -> ReasoningFormat:
    return ReasoningFormat("hy_v3", (f"<think{suffix}>",), (f"</think{suffix}>",))


REASONING_FORMATS = {
    entry.name: entry
    for entry in (
        ReasoningFormat("deepseek_r1", *_THINK),
        ReasoningFormat("hunyuan_a13b", *_THINK, ("<answer>",), ("</answer>",)),
        ReasoningFormat("ernie45", *_THINK, ("<response>",), ("</response>",)),
        ReasoningFormat("mistral", ("[THINK]", "<think>"), ("[/THINK]", "</think>")),
        ReasoningFormat("seed_oss", ("<seed:think>",), ("</seed:think>",)),
        _hunyuan(""),
        ReasoningFormat(
            "k2_horizon",
            tuple(f"<ifm|{effort}>" for effort in _EFFORTS),
            tuple(f"</ifm|{effort}>" for effort in _EFFORTS),
            interrupts=("<ifm|tool_calls>",),
        ),
        ReasoningFormat(
            "kimi_k3",
            ("<|open|>think<|sep|>",),
            ("<|close|>think<|sep|>",),
            ("<|open|>response<|sep|>",),
            ("<|close|>response<|sep|><|close|>message<|sep|>", "<|close|>response<|sep|>"),
        ),
        ReasoningFormat(_IN_CONTENT, *_THINK),  # has a parser of its own
        ReasoningFormat("minimax_m3", ("<mm:think>",), ("</mm:think>",)),
        ReasoningFormat(
            "plamo3",
            ("<|plamo:begin_think:plamo|>",),
            ("<|plamo:end_think:plamo|>",),
            interrupts=("<|plamo:begin_tool_requests:plamo|>",),
        ),
        ReasoningFormat("gemma4", ("<|channel>thought",), ("<channel|>",)),
        ReasoningFormat(
            "granite",
            ("Here is my thought process:", "Here's my thought process:"),
            ("Here is my response:", "Here's my response:"),
        ),
        ReasoningFormat(
            "cohere_command3",
            ("<|START_THINKING|>",),
            ("<|END_THINKING|>",),
            ("<|START_RESPONSE|>", "<|START_TEXT|>"),
            ("<|END_RESPONSE|>", "<|END_TEXT|>"),
        ),
        ReasoningFormat(  # has a parser of its own
            _HARMONY,
            ("<|channel|>analysis<|message|>",),
            ("<|end|>",),
            forced_end="<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
        ReasoningFormat(
            "inkling",
            ("<|content_thinking|>",),
            ("<|end_message|>",),
            forced_end="<|end_message|><|message_model|><|content_text|>",
        ),
        ReasoningFormat(
            "muse_glimmer",
            ("to=self<|message|>",),
            ("<|eom|>",),
            forced_end="<|eom|><|start|>assistant to=user<|message|>",
        ),
    )
}
"""The formats by their name in vLLM."""

_CHANNELS = {"inkling": INKLING, "muse_glimmer": MUSE_GLIMMER}

_ALIASES = {
    **dict.fromkeys(
        (
            "deepseek_v3",
            "deepseek_v4",
            "deepseek_v41",
            "glm45",
            "glm47",
            "granite_thinking_parser",
            "holo2",
            "kimi_k2",
            "ling3",
            "mimo",
            "minicpmv",
            "minimax_m2",
            "nemotron_v3",
            "olmo3",
            "poolside_v1",
            "qwen3",
            "step3",
            "step3p5",
        ),
        "deepseek_r1",
    ),
    "cohere_command4": "cohere_command3",
    "hy_v4": "hy_v3",
}

# Families whose answers are of no use without their marks.
_ALWAYS = (
    ("<|channel|>analysis", _HARMONY),
    ("<|content_thinking|>", "inkling"),
    ("<atem:function_calls>", "muse_glimmer"),
)

# The first marker found in the template decides. Early DeepSeek-R1 templates only have </think>, to cut off old
# reasoning.
_MARKERS = (
    ("<answer>\n", "hunyuan_a13b"),
    ("<ifm|think", "k2_horizon"),
    ("<|open|>", "kimi_k3"),
    ("[THINK]", "mistral"),
    ("<seed:think>", "seed_oss"),
    ("<mm:think>", "minimax_m3"),
    ("<|plamo:begin_think:plamo|>", "plamo3"),
    ("<|channel>thought", "gemma4"),
    ("Here is my thought process:", "granite"),
    ("<|START_THINKING|>", "cohere_command3"),
    *_ALWAYS,
    ("<think>", "deepseek_r1"),
    ("</think>", "deepseek_r1"),
)


def reasoning_format(name: str) -> ReasoningFormat:
    """Return the format with that name. Raises `ConfigError` if the name is unknown."""
    found = REASONING_FORMATS.get(_ALIASES.get(name, name))
    if found is None:
        raise ConfigError(f"unknown option.reasoning_parser {name!r}; known: {', '.join(reasoning_parser_names())}")
    return found


def choose_reasoning_format(chat_template: str, parser: str | None, *, enabled: bool | None) -> ReasoningFormat | None:
    """Return the format that the options select, or None if reasoning stays in the answer.

    `parser` is the name of the format. If it is None and `enabled` is true, the format is detected from
    `chat_template`. Families with channels are detected unless `enabled` is false, as Harmony is in vLLM: without its
    marks, such a text is of no use.
    Raises `ConfigError` if the name is unknown or the template has no known marks.
    """
    if enabled is False:
        return None
    if parser is None and enabled is None:
        return _detected(_ALWAYS, chat_template)
    if parser is not None:
        chosen = reasoning_format(parser)
        return _hunyuan(hunyuan_suffix(chat_template)) if chosen.name == "hy_v3" else chosen
    if (found := _detected(_MARKERS, chat_template)) is not None:
        return found
    raise ConfigError(
        "option.enable_reasoning=true: the chat template does not show how the model marks its reasoning; "
        f"set option.reasoning_parser ({', '.join(reasoning_parser_names())})"
    )


def _detected(markers: Iterable[tuple[str, str]], chat_template: str) -> ReasoningFormat | None:
    return next((REASONING_FORMATS[name] for marker, name in markers if marker in chat_template), None)


def with_reasoning(format: ReasoningFormat, prompt: str, parser: MessageParser) -> MessageParser:  # noqa: A002
    """Return a parser that separates the reasoning and leaves the answer to `parser`.

    Harmony's parser reads its calls itself, and a parser of channels leaves only calls to `parser`.
    """
    if format.name == _HARMONY:
        return HarmonyParser(prompt, calls=not isinstance(parser, PlainParser))
    if format.name in _CHANNELS:
        return ChannelParser(_CHANNELS[format.name], prompt, parser)
    if format.name == _IN_CONTENT:
        return InContentParser(format, prompt, parser)
    return ReasoningParser(format, prompt, parser)


class InContentParser(MessageParser):
    """Leaves the reasoning in the content. Writes the mark that begins it first, if the prompt ends with that."""

    def __init__(self, format: ReasoningFormat, prompt: str, parser: MessageParser) -> None:  # noqa: A002
        self._parser = parser
        self._begin = format.begins[0] if prompt.rstrip().endswith(format.begins) else ""

    def feed(self, text: str) -> MessageDelta:
        """Take more text and return what it adds to the message."""
        text, self._begin = self._begin + text, ""
        return self._parser.feed(text)

    def finish(self) -> MessageDelta:
        return self.feed("") + self._parser.finish()


class ReasoningParser(MessageParser):
    """Extracts the reasoning from the text generated after `prompt`, and passes the answer to `parser`.

    A message has reasoning if the prompt ends with a begin mark or the text starts with one. If the text ends during
    the reasoning, there is no answer, but calls in it count: some models call a function without an end mark. The
    reasoning from the first mark of a call on is therefore held until it has ended. White space around the reasoning is
    dropped.
    """

    def __init__(self, format: ReasoningFormat, prompt: str, parser: MessageParser) -> None:  # noqa: A002
        self._format = format
        self._begun = prompt.rstrip().endswith(format.begins)
        self._answers = prompt.rstrip().endswith(format.answer_begins)
        self._parser = parser
        self._calls = parser.openings
        self._text = Cursor()
        self._reasoning: list[str] = []
        self._held: list[str] = []
        self._answer: list[str] = []
        self._reading = self._read()

    def feed(self, text: str) -> MessageDelta:
        """Take more text and return what it adds to the message."""
        self._text.append(text)
        return self._advance()

    def finish(self) -> MessageDelta:
        self._text.end()
        delta = self._advance()
        if not self._held:
            return delta + self._parser.finish()
        held = "".join(self._held)
        found = self._parser.feed(held) + self._parser.finish()
        return delta + MessageDelta("", found.tool_calls, found.content if found.tool_calls else held)

    def _advance(self) -> MessageDelta:
        next(self._reading, None)
        reasoning = MessageDelta(reasoning="".join(self._reasoning))
        answer = "".join(self._answer)
        self._reasoning.clear()
        self._answer.clear()
        return reasoning + self._parser.feed(answer) if answer else reasoning

    def _read(self) -> Reading[None]:
        text, marks = self._text, self._format
        space = yield from text.take_while(SPACE)
        if (yield from self._accept(marks.begins)) or self._begun:
            space = ""
            yield from self._copy(self._reasoning, marks.ends, marks.interrupts, self._calls)
        if (yield from self._accept(marks.answer_begins)) or self._answers:
            space = ""
            yield from self._copy(self._answer, marks.answer_ends)
        self._answer.append(space)
        while (yield from text.peek()):
            self._answer.append(text.take_available(_ANYTHING))

    def _accept(self, marks: tuple[str, ...]) -> Reading[bool]:
        """Read one of `marks` and the white space after it, and return whether there was one."""
        found = yield from self._text.accept_any(marks)
        if found:
            yield from self._text.take_while(SPACE)
        return bool(found)

    def _copy(
        self, pieces: list[str], ends: tuple[str, ...], interrupts: tuple[str, ...] = (), calls: tuple[str, ...] = ()
    ) -> Reading[None]:
        """Read the text up to one of `ends` or `interrupts`, or all of it, into `pieces`.

        Drop the end mark, and the white space around either. The text from the first of `calls` on is held until then.
        """
        text = self._text
        words = re.compile(rf"[^\s{re.escape(''.join({mark[0] for mark in (*ends, *interrupts, *calls)}))}]+")
        while True:
            space = yield from text.take_while(SPACE)
            ended = yield from self._accept(ends)
            if not ended and not (yield from text.peek()):
                return
            if ended or (yield from self._continues_with(interrupts)):
                pieces += self._held
                self._held.clear()
                return
            if self._held or (yield from self._continues_with(calls)):
                self._held.append(space + text.take(1) + text.take_available(words))
            else:
                pieces.append(space + text.take(1) + text.take_available(words))

    def _continues_with(self, marks: tuple[str, ...]) -> Reading[bool]:
        for mark in marks:
            if (yield from self._text.starts_with(mark)):
                return True
        return False


_ANYTHING = re.compile(r".+", re.DOTALL)


def reasoning_parser_names() -> list[str]:
    """Return the values that `option.reasoning_parser` accepts."""
    return sorted({*REASONING_FORMATS, *_ALIASES})
