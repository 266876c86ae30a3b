"""OpenAI's responses as LMI's third generation of output formatters gets them: objects with attributes.

LMI passes on vLLM's objects, which formatters read and change by attribute. Its streams consist of server-sent events,
as text. Published formatters expect either, so an event here is both: text with the attributes of its object.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from lmi_handlers.custom_code.outputs import builtin


class JsonObject:
    """A JSON object. Its fields are attributes. Those in the class are optional: None unless the response has them."""

    def __init__(self, fields: dict[str, Any]) -> None:
        vars(self).update({name: _wrapped(name, value) for name, value in fields.items()})  # also one named __dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_dump()!r})"

    def model_dump(self, **_options: Any) -> dict[str, Any]:
        """Return the fields as a dict, like pydantic's method."""
        return {name: _plain(value) for name, value in vars(self).items()}

    def model_dump_json(self, **_options: Any) -> str:
        """Return the fields as JSON, like pydantic's method."""
        return _encode(self.model_dump()).decode()


class Response(JsonObject):
    """A whole answer."""

    usage = None
    system_fingerprint = None


class Choice(JsonObject):
    """One of the answers."""

    logprobs = None
    finish_reason = None
    stop_reason = None


class Message(JsonObject):
    """A message, or what a chunk adds to one."""

    role = None
    content = None
    refusal = None
    tool_calls = None
    function_call = None
    reasoning_content = None
    reasoning = None


class SentEvent(str, Response):
    """A server-sent event of a stream, with the attributes of its object."""

    def __new__(cls, event: str, _fields: dict[str, Any]) -> SentEvent:
        return super().__new__(cls, event)

    def __init__(self, _event: str, fields: dict[str, Any]) -> None:
        Response.__init__(self, fields)

    __repr__ = str.__repr__


def encode(value: Any) -> bytes | None:
    """Return an object, or a dict, as compact JSON. None if it is neither."""
    if isinstance(value, JsonObject):
        return _encode(value.model_dump())
    if hasattr(value, "model_dump_json"):  # of pydantic
        return str(value.model_dump_json()).encode()
    return _encode(_plain(value)) if isinstance(value, dict | list) else None


def encode_like_python(value: Any) -> bytes | None:
    """Return a dict as JSON with a space after each comma and colon, as LMI writes it. None if it is not a dict."""
    if not isinstance(value, dict | list):
        return encode(value)
    return json.dumps(_plain(value), ensure_ascii=False, default=builtin).encode()


_KINDS = {"choices": Choice, "message": Message, "delta": Message}


def _wrapped(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _KINDS.get(name, JsonObject)(value)
    if isinstance(value, list):
        return [_wrapped(name, item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, JsonObject):
        return value.model_dump()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=builtin)
