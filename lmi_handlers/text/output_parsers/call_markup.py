"""Calls written as tags, such as `<function=f><parameter=a>1</parameter></function>`: the tags, and values as JSON.

This is not XML: the name is part of the tag, and values are not escaped.
"""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from lmi_handlers.text.output_parsers.cursor import Cursor, Malformed, Reading
from lmi_handlers.text.output_parsers.partial_json import Write, json_string
from lmi_handlers.text.output_parsers.python_literal import JSON_CONSTANTS


class Markup(msgspec.Struct, frozen=True):
    """The tags of a call, in this order: `call`, the name, `name_end`, the arguments, `call_end`.

    Each argument is `parameter`, the key, one of `key_ends`, the value, one of `value_ends`.
    """

    call: str
    name_end: str
    parameter: str
    key_ends: tuple[str, ...]
    value_ends: tuple[str, ...]
    call_end: str


# A line break at the start or end of a value is not part of it.
_QWEN = Markup("<function=", ">", "<parameter=", (">\n", ">"), ("\n</parameter>", "</parameter>"), "</function>")
GLM = Markup("", "", "<arg_key>", ("</arg_key>\n<arg_value>", "</arg_key><arg_value>"), ("</arg_value>",), "")
"""The name comes first without a tag, and the call ends at the closing tag around it."""

STATED_TYPES = {'" string="true">': {"string"}, '" string="false">': {"boolean", "number", "array", "object"}}
"""The value types that a `key_ends` entry declares."""


def _invoke(prefix: str) -> Markup:
    return Markup(
        f'<{prefix}invoke name="',
        '">',
        f'<{prefix}parameter name="',
        ('">', *STATED_TYPES),
        (f"</{prefix}parameter>",),
        f"</{prefix}invoke>",
    )


MARKUPS = {markup.call: markup for markup in (_QWEN, _invoke(""), _invoke("｜DSML｜"), _invoke("steptml:"))}
"""The tags of Qwen3-Coder, MiniMax, DeepSeek and Step3, by the text that starts a call."""


def copy_text(text: Cursor, ends: Iterable[str], write: Write) -> Reading[None]:
    """Read up to and including one of `ends`, and write the text before it. Raises `Malformed` if there is none."""
    while not (yield from text.accept_any(ends)):
        if not (yield from text.peek()):
            raise Malformed
        write(text.take_available(_UNTAGGED) or text.take(1))


def argument_types(schema: Mapping[str, object], key: str) -> set[str]:
    """Return the types that `schema`, the schema of all arguments, declares for `key`.

    The set is empty if it has none.
    """
    properties = schema.get("properties")
    return _types(properties.get(key)) if isinstance(properties, Mapping) else set()


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


def _types(schema: object) -> set[str]:
    """Return the types that `schema` declares, directly or in `anyOf` and `oneOf`."""
    found: set[str] = set()
    if isinstance(schema, Mapping):
        for alternative in (schema, *_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
            declared = alternative.get("type") if isinstance(alternative, Mapping) else None
            found.update(name for name in _list(declared) if isinstance(name, str))
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


_UNTAGGED = re.compile(r"[^<\n]+")
