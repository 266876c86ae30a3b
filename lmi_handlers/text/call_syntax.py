"""The ways in which models write a call: as a JSON object, as Python, with the name in front, as tags.

Which tags stand around calls depends on the model's family (`tool_formats`); what is inside tells its kind by its first
character, so every family reads all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from lmi_handlers.text.cursor import SPACE, Cursor, Malformed, Reading
from lmi_handlers.text.partial_json import (
    Write,
    copy_value,
    decode_string,
    json_string,
    read_key,
    read_string,
    string_content,
)
from lmi_handlers.text.python_literal import JSON_CONSTANTS, read_python_value

Schemas = Mapping[str, Mapping[str, object]]
"""The functions that may be called, by name, each with the JSON Schema of its arguments."""


class CallSink(Protocol):
    """Takes calls as they are read."""

    def open_call(self, name: str) -> None:
        """Begin another call."""

    def write_arguments(self, piece: str) -> None:
        """Add to the JSON text of the arguments of the call begun last."""


class CallReader:
    """Reads calls from `text` into `sink`.

    The caller holds the text before a call, and what is held is dropped as soon as the call's name is known.
    """

    def __init__(self, text: Cursor, sink: CallSink, schemas: Schemas) -> None:
        self._text = text
        self._sink = sink
        self._schemas = schemas

    def read(self, *, known_names_only: bool) -> Reading[None]:
        """Read one call, or a list of them in brackets.

        Raises `Malformed` where the text does not go on as a call, with `known_names_only` also at a name that is none
        of `schemas`. The calls read so far stay, and so do the arguments of the one that broke off.
        """
        names = self._schemas.keys() if known_names_only else None
        if not (yield from self._text.accept("[")):
            yield from self._call(names)
            return
        while True:
            yield from self._text.run(SPACE)
            yield from self._call(names)
            self._text.hold()
            yield from self._text.run(SPACE)
            if (yield from self._text.accept("]")):
                return
            yield from self._text.expect(",")

    def _call(self, names: Collection[str] | None) -> Reading[None]:
        call = _Call(self._text, self._sink, names)
        char = yield from self._text.peek()
        if char == "{":
            yield from self._json(call)
        elif char == "<":
            yield from self._xml(call)
        else:
            yield from self._named(call)
        call.close()

    def _json(self, call: _Call, *, nested: bool = False) -> Reading[None]:
        """`{"name": "f", "arguments": {...}}`, Llama's `parameters`, OpenAI's and TGI's object in `function`."""
        text = self._text
        yield from text.expect("{")
        first = True
        while (key := (yield from read_key(text, first=first))) is not None:
            if key == "name":
                call.open((yield from read_string(text)))
            elif key in ("arguments", "parameters") and not call.has_arguments:
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
        """TGI's `{"_name": "f", "a": 1}`: the arguments are the other members of the object."""
        separator = "{"
        while (key := (yield from read_key(self._text, first=False))) is not None:
            call.write(f"{separator}{json_string(key)}: ")
            yield from copy_value(self._text, call.write)
            separator = ", "
        if separator != "{":
            call.write("}")

    def _named(self, call: _Call) -> Reading[None]:
        """Mistral's `f[ARGS]{...}`, `f[CALL_ID]0a1b2c3d4[ARGS]{...}` and `f{...}`, and Python's `f(a=1)`."""
        text = self._text
        name = yield from text.run(_NAME)
        if (yield from text.accept("(")):
            call.open(name)
            yield from self._keywords(call)
            return
        if (yield from text.accept("[CALL_ID]")):
            yield from text.run(_NAME)
        yield from text.accept("[ARGS]")
        yield from text.run(SPACE)
        if (yield from text.peek()) != "{":
            raise Malformed
        call.open(name)
        yield from copy_value(text, call.write)

    def _keywords(self, call: _Call) -> Reading[None]:
        text = self._text
        separator = "{"
        yield from text.run(SPACE)
        while not (yield from text.accept(")")):
            if separator != "{":
                yield from text.expect(",")
                yield from text.run(SPACE)
                if (yield from text.accept(")")):
                    break
            key = yield from text.run(_NAME)
            yield from text.run(SPACE)
            yield from text.expect("=")
            call.write(f"{separator}{json_string(key)}: ")
            yield from read_python_value(text, call.write)
            separator = ", "
            yield from text.run(SPACE)
        if separator != "{":
            call.write("}")

    def _xml(self, call: _Call) -> Reading[None]:
        """Qwen3-Coder's `<function=f><parameter=a>...</parameter></function>`; the schema says what is no string."""
        text = self._text
        yield from text.expect("<function=")
        name = (yield from text.run(_TAG_NAME)).strip()
        yield from text.expect(">")
        call.open(name)
        properties = self._schemas.get(name, {}).get("properties")
        separator = "{"
        yield from text.run(SPACE)
        while not (yield from text.accept("</function>")):
            yield from text.expect("<parameter=")
            key = (yield from text.run(_TAG_NAME)).strip()
            yield from text.expect(">")
            call.write(f"{separator}{json_string(key)}: ")
            types = _types(properties.get(key)) if isinstance(properties, Mapping) else set()
            if types <= {"string"}:
                call.write('"')
                yield from _xml_text(text, lambda piece: call.write(string_content(piece)))
                call.write('"')
            else:
                pieces: list[str] = []
                yield from _xml_text(text, pieces.append)
                call.write(_typed("".join(pieces), types))
            separator = ", "
            yield from text.run(SPACE)
        if separator != "{":
            call.write("}")


class _Call:
    """A call that is being read. Arguments that come before the name wait for it."""

    def __init__(self, text: Cursor, sink: CallSink, names: Collection[str] | None) -> None:
        self.has_arguments = False
        self._text = text
        self._sink = sink
        self._names = names
        self._name: str | None = None
        self._waiting: list[str] = []
        self._empty = True

    def accepts_key(self, key: str) -> bool:
        """Whether the JSON object of a call may also have `key`. Text without a tag shall soon turn out to be none."""
        return self._name is not None or self._names is None or key in ("id", "type")

    def open(self, name: str) -> None:
        """Take the name. Raises `Malformed` where it can be none."""
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
        """Take a piece of the arguments."""
        if self._name is None:
            self._waiting.append(piece)
        elif piece:
            self._empty = False
            self._sink.write_arguments(piece)

    def close(self) -> None:
        """Take the end. A call without arguments has an empty object of them, as clients parse it."""
        if self._name is None:
            raise Malformed
        if self._empty:
            self.write("{}")


_NAME = re.compile(r"[-.\w]+")
_TAG_NAME = re.compile(r"[^<>\n]+")


def _ignore(_: str) -> None:
    pass


def _xml_text(text: Cursor, write: Write) -> Reading[None]:
    """Read up to and with `</parameter>`; a line break at either end is no part of the value."""
    yield from text.accept("\n")
    while not ((yield from text.accept("</parameter>")) or (yield from text.accept("\n</parameter>"))):
        if not (yield from text.peek()):
            raise Malformed
        write(text.available(_UNTAGGED) or text.take(1))


def _typed(value: str, types: set[str]) -> str:
    """Return the JSON of a value that has one of `types`; the text itself as a string where it is no other."""
    constant = JSON_CONSTANTS.get(value.strip())
    if constant == "null" and "null" in types:
        return constant
    if "string" not in types:
        if constant is not None:
            return constant
        try:
            msgspec.json.decode(value)
        except (ValueError, RecursionError):
            pass
        else:
            return value.strip()
    return json_string(value)


def _types(schema: object) -> set[str]:
    """Return the types that `schema` declares, alone or as alternatives."""
    found: set[str] = set()
    if isinstance(schema, Mapping):
        for alternative in (schema, *_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
            declared = alternative.get("type") if isinstance(alternative, Mapping) else None
            found.update(name for name in _list(declared) if isinstance(name, str))
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


_UNTAGGED = re.compile(r"[^<\n]+")
