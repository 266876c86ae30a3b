"""Calls in tags, as in `<function=f><parameter=a>1</parameter></function>`: which tags, and the JSON of what is in them."""

# ruff: noqa: RUF001  DeepSeek's tokens have full-width bars.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from lmi_handlers.text.cursor import Cursor, Malformed, Reading
from lmi_handlers.text.partial_json import Write, json_string
from lmi_handlers.text.python_literal import JSON_CONSTANTS


class Markup(msgspec.Struct, frozen=True):
    """The tags of a call: `call`, name, `name_end`, the arguments, `call_end`.

    An argument is `parameter`, its key, one of `key_ends`, its value, one of `value_ends`.
    """

    call: str
    name_end: str
    parameter: str
    key_ends: tuple[str, ...]
    value_ends: tuple[str, ...]
    call_end: str


# A line break at either end is no part of the value.
_QWEN = Markup("<function=", ">", "<parameter=", (">\n", ">"), ("\n</parameter>", "</parameter>"), "</function>")
GLM = Markup("", "", "<arg_key>", ("</arg_key>\n<arg_value>", "</arg_key><arg_value>"), ("</arg_value>",), "")
"""The name stands in front, and the end of the call is that of the tag around it."""

STATED_TYPES = {'" string="true">': {"string"}, '" string="false">': {"boolean", "number", "array", "object"}}
"""What a key's end says of the value."""


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
"""By the text that they begin with: Qwen3-Coder's, MiniMax', DeepSeek's and Step3's."""


def copy_text(text: Cursor, ends: Iterable[str], write: Write) -> Reading[None]:
    """Read up to and with one of `ends`, and write what stands in front of it. Raises `Malformed` where there is none."""
    while not (yield from text.accept_any(ends)):
        if not (yield from text.peek()):
            raise Malformed
        write(text.available(_UNTAGGED) or text.take(1))


def argument_types(schema: Mapping[str, object], key: str) -> set[str]:
    """Return the types that `schema`, one of all arguments, declares for `key`; none where it says nothing."""
    properties = schema.get("properties")
    return _types(properties.get(key)) if isinstance(properties, Mapping) else set()


def typed_json(value: str, types: set[str]) -> str:
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
