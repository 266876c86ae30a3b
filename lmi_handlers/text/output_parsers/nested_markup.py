"""Reads MiniMax M3's calls, whose arguments are elements that may nest.

    ]<]minimax[>[<invoke name="f">]<]minimax[>[<place>]<]minimax[>[<city>Rome]<]minimax[>[</city>]<]minimax[>[</place>..

An element with others inside is an object, or an array if the schema says so. Elements of the same name are a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lmi_handlers.text.output_parsers.call_markup import schema_types, typed_json
from lmi_handlers.text.output_parsers.cursor import Cursor, Malformed, Reading
from lmi_handlers.text.output_parsers.partial_json import json_string

NAMESPACE = "]<]minimax[>["
"""Comes before each tag."""

_MAX_DEPTH = 128  # as in vLLM
_MAX_NAME = 1024  # characters; while an element is read, each bracket in its text is compared with its end tag

Element = str | list[tuple[str, "Element"]]
"""The text of an element, or the elements in it, by name."""


def read_element(text: Cursor, name: str, depth: int = 0) -> Reading[Element]:
    """Read the content and the end tag of the element `name`.

    Raises `Malformed` if there is none, if it is too deep, or if the name of an element in it is too long.
    """
    if depth > _MAX_DEPTH:
        raise Malformed
    pieces: list[str] = []
    children: list[tuple[str, Element]] = []
    while not (yield from text.accept(f"{NAMESPACE}</{name}>")):
        if (yield from text.accept(f"{NAMESPACE}<")):
            child = yield from text.take_while(_NAME)
            yield from text.expect(">")
            if not child.strip() or child.startswith("/") or len(child) > _MAX_NAME:
                raise Malformed
            children.append((child, (yield from read_element(text, child, depth + 1))))
        elif (yield from text.peek()):
            pieces.append(text.take_available(_PLAIN) or text.take(1))
        else:
            raise Malformed
    content = "".join(pieces)
    if children and depth and content.strip():
        children.append((_unused("$text", children), content))
    return children or content


def arguments_json(element: Element, schema: Mapping[str, object]) -> str:
    """Return the arguments of a call as JSON. `schema` is that of all arguments."""
    return _object(element, schema) if isinstance(element, list) else "{}"


def _value(element: Element, schema: object) -> str:
    kind, container = _container(schema)
    if isinstance(element, str):
        types = schema_types(schema)
        if kind and "string" not in types and not element.strip():
            return "[]" if kind == "array" else "{}"
        return typed_json(element, types) if types else json_string(element)
    if kind == "array":
        return f"[{', '.join(_value(child, container.get('items')) for _, child in element)}]"
    return _object(element, container)


def _object(elements: list[tuple[str, Element]], schema: Mapping[str, object]) -> str:
    properties = schema.get("properties")
    values: dict[str, list[str]] = {}
    for name, element in elements:
        declared = properties.get(name) if isinstance(properties, Mapping) else None
        value = _value(element, schema.get("additionalProperties") if declared is None else declared)
        values.setdefault(name, []).append(value)
    members = (
        f"{json_string(name)}: {found[0] if len(found) == 1 else '[' + ', '.join(found) + ']'}"
        for name, found in values.items()
    )
    return f"{{{', '.join(members)}}}"


def _container(schema: object) -> tuple[str, Mapping[str, object]]:
    """Return "array" or "object" and the schema of that, of this schema or one of its alternatives, or "" and none."""
    for alternative in _alternatives(schema):
        types = alternative.get("type")
        for kind, keywords in (("array", ("items",)), ("object", ("properties", "additionalProperties"))):
            if types == kind or (isinstance(types, list) and kind in types):
                return kind, alternative
            if types is None and any(keyword in alternative for keyword in keywords):
                return kind, alternative
    return "", {}


def _alternatives(schema: object) -> Iterator[Mapping[str, object]]:
    if isinstance(schema, Mapping):
        yield schema
        for keyword in ("anyOf", "oneOf"):
            choices = schema.get(keyword)
            if isinstance(choices, list):
                yield from (choice for choice in choices if isinstance(choice, Mapping))


def _unused(name: str, elements: list[tuple[str, Element]]) -> str:
    while any(other == name for other, _ in elements):
        name = f"${name}"
    return name


_NAME = re.compile(r"[^>]+")
_PLAIN = re.compile(r"[^\]]+")
