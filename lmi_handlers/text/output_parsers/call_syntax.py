"""Reads the syntaxes in which models write a call: a JSON object, Python, a name followed by arguments, or tags.

The tags around a call depend on the model's family (see `tool_formats`). The syntax inside them is recognised by its
first characters, so every family accepts all of them.
"""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

from lmi_handlers.text.output_parsers.call_markup import (
    CDATA,
    GLM,
    MARKUPS,
    Markup,
    argument_types,
    copy_argument,
    copy_text,
    read_types,
)
from lmi_handlers.text.output_parsers.cursor import SPACE, Cursor, Malformed, Reading
from lmi_handlers.text.output_parsers.nested_markup import NAMESPACE, arguments_json, read_element
from lmi_handlers.text.output_parsers.partial_json import (
    copy_value,
    decode_string,
    json_string,
    read_key,
    read_string,
)
from lmi_handlers.text.output_parsers.python_literal import read_python_value

Schemas = Mapping[str, Mapping[str, object]]
"""The JSON Schema of each function's arguments, by function name."""


class CallSink(Protocol):
    """Receives calls as they are read."""

    def open_call(self, name: str) -> None:
        """Start a new call."""

    def write_arguments(self, piece: str) -> None:
        """Append to the JSON arguments of the latest call."""


class CallReader:
    """Reads calls from `text` into `sink`.

    The caller calls `hold` on the cursor before a call. The held text is discarded as soon as the call's name is known.
    `named` has the tags of arguments after a bare name. If calls in JSON are `keyed`, each is `{"f": {"a": 1}}`.
    """

    def __init__(
        self, text: Cursor, sink: CallSink, schemas: Schemas, named: Markup = GLM, *, keyed: bool = False
    ) -> None:
        self._text = text
        self._sink = sink
        self._schemas = schemas
        self._named_markup = named
        self._object = self._keyed if keyed else self._json
        others = sorted((name for name in schemas if not _NAME.fullmatch(name)), key=len, reverse=True)
        self._other_names = [prefix + name for name in others for prefix in ("functions.", "")]

    def read(self, *, known_names_only: bool) -> Reading[None]:
        """Read one call, or several in square brackets.

        Raises `Malformed` if the text is not a call, or with `known_names_only` if the name is not in `schemas`. Calls
        read before the error are kept, including a partial last one.
        """
        names = self._schemas.keys() if known_names_only else None
        if not (yield from self._text.accept("[")):
            yield from self._call(names)
            return
        while True:
            yield from self._text.take_while(SPACE)
            yield from self._call(names)
            self._text.hold()
            yield from self._text.take_while(SPACE)
            if (yield from self._text.accept("]")):
                return
            yield from self._text.expect(",")

    def _call(self, names: Collection[str] | None) -> Reading[None]:
        call = _Call(self._text, self._sink, names)
        char = yield from self._text.peek()
        if char == "{":
            yield from self._object(call)
        elif char == "<":
            yield from self._markup(call)
        elif (yield from self._text.accept(f"{NAMESPACE}<invoke name=")):
            yield from self._nested(call)
        elif (yield from self._text.accept("call:")):
            yield from self._gemma(call)
        else:
            yield from self._named(call)
        call.close()

    def _json(self, call: _Call, *, nested: bool = False) -> Reading[None]:
        """Read `{"name": "f", "arguments": {...}}`, also with the keys of Llama, Cohere, Inkling, OpenAI and TGI."""
        text = self._text
        yield from text.expect("{")
        first = True
        while (key := (yield from read_key(text, first=first))) is not None:
            if key in ("name", "tool_name"):
                call.open((yield from read_string(text)))
            elif key in ("arguments", "parameters", "args") and not call.has_arguments:
                call.has_arguments = True
                quoted = (yield from text.peek()) == '"'
                yield from (decode_string if quoted else copy_value)(text, call.write)
            elif key == "function" and not nested and (yield from text.starts_with("{")):
                yield from self._json(call, nested=True)
            elif key == "function":
                call.open((yield from read_string(text)))
            elif key == "_name" and nested and first:
                call.open((yield from read_string(text)))
                yield from self._members(call)
                return
            elif call.accepts_key(key):
                yield from copy_value(text, _ignore)
            else:
                raise Malformed
            first = False

    def _members(self, call: _Call) -> Reading[None]:
        """Read the rest of TGI's `{"_name": "f", "a": 1}`, where the other members are the arguments."""
        separator = "{"
        while (key := (yield from read_key(self._text, first=False))) is not None:
            call.write(f"{separator}{json_string(key)}: ")
            yield from copy_value(self._text, call.write)
            separator = ", "
        if separator != "{":
            call.write("}")

    def _keyed(self, call: _Call) -> Reading[None]:
        """Read `{"f": {"a": 1}}`."""
        text = self._text
        yield from text.expect("{")
        name = yield from read_key(text, first=True)
        call.open(name or "")
        yield from copy_value(text, call.write)
        while (yield from read_key(text, first=False)) is not None:
            yield from copy_value(text, _ignore)

    def _named(self, call: _Call) -> Reading[None]:
        """Read a name followed by arguments as Python, GLM's tags or JSON."""
        text = self._text
        name = yield from self._name()
        if (yield from text.accept("(")):
            call.open(name)
            yield from self._keywords(call)
            return
        # Skip call ids: Mistral writes `f[CALL_ID]0a1b2c3d4`, Kimi writes `functions.f:0`.
        if (yield from text.accept("[CALL_ID]")):
            yield from text.take_while(_NAME)
        elif (yield from text.accept(":")):
            yield from text.take_while(_NAME)
            name = name.removeprefix("functions.")
        yield from text.take_while(SPACE)
        markup = self._named_markup
        separated = bool(markup.name_end) and (yield from text.accept(markup.name_end))
        yield from text.take_while(SPACE)
        # GLM writes a call without arguments as just a name in the tag. Other families may have any word there, so the
        # name must be known.
        is_alone = (separated or name in self._schemas) and (yield from text.starts_with(markup.around))
        if is_alone or (yield from text.starts_with(markup.parameter)):
            call.open(name)
            yield from self._parameters(call, name, markup)
            return
        mark = yield from text.accept_any(_ARGUMENT_MARKS)
        yield from text.take_while(SPACE)
        if (yield from text.peek()) != "{":
            raise Malformed
        call.open(name)
        yield from copy_value(text, call.write)
        if mark == _FENCE:
            yield from text.take_while(SPACE)
            yield from text.accept("```")

    def _gemma(self, call: _Call) -> Reading[None]:
        """Read the rest of Gemma's `call:f{a:<|"|>text<|"|>,b:1}`."""
        name = yield from self._name()
        if (yield from self._text.peek()) != "{":
            raise Malformed
        call.open(name)
        yield from read_python_value(self._text, call.write)

    def _name(self) -> Reading[str]:
        """Read a name that stands alone. Only an offered one may have slashes and colons, as those of MCP have."""
        return (yield from self._text.accept_any(self._other_names)) or (yield from self._text.take_while(_NAME))

    def _keywords(self, call: _Call) -> Reading[None]:
        text = self._text
        separator = "{"
        yield from text.take_while(SPACE)
        while not (yield from text.accept(")")):
            if separator != "{":
                yield from text.expect(",")
                yield from text.take_while(SPACE)
                if (yield from text.accept(")")):
                    break
            key = yield from text.take_while(_NAME)
            yield from text.take_while(SPACE)
            yield from text.expect("=")
            call.write(f"{separator}{json_string(key)}: ")
            yield from read_python_value(text, call.write)
            separator = ", "
            yield from text.take_while(SPACE)
        if separator != "{":
            call.write("}")

    def _markup(self, call: _Call) -> Reading[None]:
        """Read `<function=f><parameter=a>...</parameter></function>` (Qwen3-Coder) and similar tags."""
        text = self._text
        opening = yield from text.accept_any(MARKUPS)
        if not opening:
            raise Malformed
        markup = MARKUPS[opening]
        name = (yield from text.take_while(_TAG_NAME)).strip()
        yield from text.expect(markup.name_end)
        if markup.attributes_end:
            yield from copy_text(text, (markup.attributes_end,), _ignore)
        call.open(name)
        yield from self._parameters(call, name, markup)

    def _nested(self, call: _Call) -> Reading[None]:
        """Read the rest of MiniMax M3's call. Its arguments are written at its end: a later one may change an earlier."""
        text = self._text
        quote = yield from text.accept_any(('"', "'"))
        name = (yield from text.take_while(_TAG_NAME)).strip("' ")
        yield from text.expect('">' if quote == '"' else ">")
        call.open(name)
        arguments = yield from read_element(text, "invoke")
        call.write(arguments_json(arguments, self._schemas.get(name, {})))

    def _parameters(self, call: _Call, name: str, markup: Markup) -> Reading[None]:
        """Read arguments in tags. The type of a value comes from the tag, or else from the schema."""
        text = self._text
        schema = self._schemas.get(name, {})
        separator = "{"
        yield from text.take_while(SPACE)
        while (yield from text.accept(markup.parameter)):
            key = (yield from text.take_while(_TAG_NAME)).strip()
            key_end = yield from text.accept_any(markup.key_ends)
            if not key_end:
                raise Malformed
            types = yield from read_types(text, markup, key_end, argument_types(schema, key))
            call.write(f"{separator}{json_string(key)}: ")
            yield from copy_argument(text, call.write, markup, types, in_cdata=key_end.endswith(CDATA))
            separator = ", "
            yield from text.take_while(SPACE)
        if not (yield from text.accept(markup.call_end)) and not (yield from text.peek()):
            raise Malformed  # cut off. If other text follows, only the end tag is missing
        if separator != "{":
            call.write("}")


class _Call:
    """A call that is being read. Arguments that come before the name are kept until the name is known."""

    def __init__(self, text: Cursor, sink: CallSink, names: Collection[str] | None) -> None:
        self.has_arguments = False
        self._text = text
        self._sink = sink
        self._names = names
        self._name: str | None = None
        self._waiting: list[str] = []
        self._empty = True

    def accepts_key(self, key: str) -> bool:
        """True if the JSON object of a call may have another `key`.

        Without a tag, only "id" and "type" may come before the name, to detect early that the text is not a call.
        """
        return self._name is not None or self._names is None or key in ("id", "type")

    def open(self, name: str) -> None:
        """Set the name. Raises `Malformed` if it is empty or not allowed."""
        if self._name is not None:
            return
        if not name or (self._names is not None and name not in self._names):
            raise Malformed
        self._name = name
        self._text.release()
        self._sink.open_call(name)
        for piece in self._waiting:
            self.write(piece)
        self._waiting.clear()

    def write(self, piece: str) -> None:
        if self._name is None:
            self._waiting.append(piece)
        elif piece:
            self._empty = False
            self._sink.write_arguments(piece)

    def close(self) -> None:
        """End the call. A call without arguments gets `{}`, because clients parse the arguments as JSON."""
        if self._name is None:
            raise Malformed
        if self._empty:
            self.write("{}")


_NAME = re.compile(r"[-.\w]+")
_TAG_NAME = re.compile(r'[^<>"\n]+')
_FENCE = "```json"  # DeepSeek V3
_ARGUMENT_MARKS = (
    "[ARGS]",  # Mistral
    "<|tool_call_argument_begin|>",  # Kimi
    "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
    "<｜tool▁sep｜>",  # DeepSeek V3.1
    _FENCE,
    # gpt-oss
    "<|constrain|>json<|message|>",
    "json<|message|>",
    "<|message|>",
    "<|channel|>commentary <|constrain|>json<|message|>",
    "<|channel|>commentary json<|message|>",
    "<|channel|>commentary<|message|>",
)


def _ignore(_: str) -> None:
    pass
