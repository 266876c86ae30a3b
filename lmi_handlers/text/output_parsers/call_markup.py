"""Calls written as tags, such as `<function=f><parameter=a>1</parameter></function>`: the tags, and values as JSON.

This is not XML: the name is part of the tag, and values are not escaped.
"""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import unescape

import msgspec

from lmi_handlers.text.output_parsers.cursor import SPACE, Cursor, Malformed, Reading
from lmi_handlers.text.output_parsers.partial_json import Write, json_string, string_content
from lmi_handlers.text.output_parsers.python_literal import JSON_CONSTANTS


class Markup(msgspec.Struct, frozen=True):
    """The tags of a call, in this order: `call`, the name, `name_end`, the arguments, `call_end`.

    Each argument is `parameter`, the key, one of `key_ends`, the value, one of `value_ends`. Families differ in details:

    - If `attributes_end` is not empty, other attributes may follow the name, up to that text.
    - `type_tag` is around a type that may stand after the key, and `value` comes before the value, after white space.
    - If `call` is empty, the name comes first without a tag, and the call ends at `around`, the closing tag around it.
    - `untyped` are the types of a value whose schema has none.
    - With `is_xml`, the five entities of XML are decoded, unless the value is in a CDATA section.
    """

    call: str
    name_end: str
    parameter: str
    key_ends: tuple[str, ...]
    value_ends: tuple[str, ...]
    call_end: str
    attributes_end: str = ""
    type_tag: tuple[str, str] | None = None
    value: str = ""
    around: str = ""
    untyped: frozenset[str] = frozenset()
    is_xml: bool = False


_CONTAINERS = {"array", "object"}
ANY_TYPE = frozenset({"boolean", "null", "number", *_CONTAINERS})
"""Types of which any JSON is a value. Other text is a string."""

STATED_TYPES: dict[str, set[str]] = {
    '" string="true">': {"string"},
    '" string="false">': {"boolean", "number", *_CONTAINERS},
    **{
        f'" type="{name}"<|sep|>': {name}
        for name in ("string", "number", "integer", "boolean", "null", "object", "array")
    },
}
"""The value types that a `key_ends` entry declares."""

CDATA, _CDATA_END = "<![CDATA[", "]]>"


def _invoke(prefix: str, untyped: frozenset[str] = frozenset()) -> Markup:
    return Markup(
        f'<{prefix}invoke name="',
        '">',
        f'<{prefix}parameter name="',
        ('">', *(end for end in STATED_TYPES if "string=" in end)),
        (f"</{prefix}parameter>",),
        f"</{prefix}invoke>",
        untyped=untyped,
    )


def after_a_name(prefix: str = "", suffix: str = "", separator: str = "", type_tag: str = "") -> Markup:
    """Return the tags of arguments that follow a bare name, such as GLM's `f<arg_key>a</arg_key><arg_value>1</arg_value>`.

    The names of tags begin with `prefix` and end with `suffix`. The tag `separator` may follow the name.
    """

    def tag(name: str) -> str:
        return f"{prefix}{name}{suffix}>"

    key_end, value = f"</{tag('arg_key')}", f"<{tag('arg_value')}"
    return Markup(
        "",
        f"<{tag(separator)}" if separator else "",
        f"<{tag('arg_key')}",
        (key_end,) if type_tag else (f"{key_end}\n{value}", key_end + value),
        (f"</{tag('arg_value')}",),
        "",
        type_tag=(f"<{tag(type_tag)}", f"</{tag(type_tag)}") if type_tag else None,
        value=value if type_tag else "",
        around=f"</{tag('tool_call')}",
    )


GLM = after_a_name()

MARKUPS = {
    markup.call: markup
    for markup in (
        # Qwen3-Coder. A line break at the start or end of a value is not part of it.
        Markup("<function=", ">", "<parameter=", (">\n", ">"), ("\n</parameter>", "</parameter>"), "</function>"),
        *map(_invoke, ("", "｜DSML｜", "｜DSML｜ ", "steptml:")),  # MiniMax, DeepSeek (also 4.1), Step3
        _invoke("atem:", ANY_TYPE),  # MuseGlimmer
        Markup(  # MiniCPM5
            '<function name="',
            '">',
            '<param name="',
            (f'">{CDATA}', '">'),
            ("</param>",),
            "</function>",
            untyped=ANY_TYPE,
            is_xml=True,
        ),
        Markup(  # Kimi K3
            '<|open|>call tool="',
            '"',
            '<|open|>argument key="',
            tuple(end for end in STATED_TYPES if "type=" in end),
            ("<|close|>argument<|sep|>",),
            "<|close|>call<|sep|>",
            attributes_end="<|sep|>",
        ),
    )
}
"""The tags of families that begin a call with one, by the text of that."""


def copy_text(text: Cursor, ends: Iterable[str], write: Write) -> Reading[None]:
    """Read up to and including one of `ends`, and write the text before it. Raises `Malformed` if there is none."""
    while not (yield from text.accept_any(ends)):
        if not (yield from text.peek()):
            raise Malformed
        write(text.take_available(_UNTAGGED) or text.take(1))


def read_types(text: Cursor, markup: Markup, key_end: str, declared: set[str]) -> Reading[set[str]]:
    """Read what stands between `key_end` and a value. Return the types of the value, as the tags or `declared` say.

    Raises `Malformed` if no value follows.
    """
    types = STATED_TYPES.get(key_end) or declared
    if markup.value:
        yield from text.take_while(SPACE)
        if markup.type_tag and (yield from text.accept(markup.type_tag[0])):
            stated: list[str] = []
            yield from copy_text(text, (markup.type_tag[1],), stated.append)
            types = _stated_type("".join(stated), declared)
            yield from text.take_while(SPACE)
        yield from text.expect(markup.value)
    return types or set(markup.untyped)


def copy_argument(text: Cursor, write: Write, markup: Markup, types: set[str], *, in_cdata: bool) -> Reading[None]:
    """Read up to the end of a value and write it as JSON. Raises `Malformed` if it does not end."""
    ends = tuple(_CDATA_END + end for end in markup.value_ends) if in_cdata else markup.value_ends
    if types <= {"string"} and not markup.is_xml:
        write('"')
        yield from copy_text(text, ends, lambda piece: write(string_content(piece)))
        write('"')
        return
    pieces: list[str] = []
    yield from copy_text(text, ends, pieces.append)
    value = "".join(pieces)
    value = unescape(value, _XML_ENTITIES) if markup.is_xml and not in_cdata else value
    write(typed_json(value, types) if types else json_string(value))


def _stated_type(stated: str, declared: set[str]) -> set[str]:
    """Return the types of a value whose tag states one. The schema's take precedence, unless they leave a choice."""
    name = stated.partition("[")[0].strip().lower()
    if declared and not (name in declared and len(declared) > 1):
        return declared
    return set() if name == "any" else {name}


def argument_types(schema: Mapping[str, object], key: str) -> set[str]:
    """Return the types that `schema`, the schema of all arguments, declares for `key`.

    The set is empty if it has none.
    """
    properties = schema.get("properties")
    return schema_types(properties.get(key)) if isinstance(properties, Mapping) else set()


def typed_json(value: str, types: set[str]) -> str:
    """Return `value` as JSON, given its declared types.

    The result is a string if `types` includes "string" or if the text is not valid JSON. A null is kept if it is
    allowed.
    """
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


def schema_types(schema: object) -> set[str]:
    """Return the types that `schema` declares, directly or in `anyOf` and `oneOf`."""
    found: set[str] = set()
    if isinstance(schema, Mapping):
        for alternative in (schema, *_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
            declared = alternative.get("type") if isinstance(alternative, Mapping) else None
            found.update(name for name in _list(declared) if isinstance(name, str))
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


_UNTAGGED = re.compile(r"[^<\n\]]+")  # text without the first character of any end
_XML_ENTITIES = {"&quot;": '"', "&apos;": "'"}
