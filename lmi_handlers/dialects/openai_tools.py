"""Tools: what a request may call, and what the answer is held to where it must."""

from __future__ import annotations

from typing import Any

import msgspec

from lmi_handlers.errors import InvalidRequest
from lmi_handlers.sampling_params import StructuredOutputs

MAX_CALLS = 8
"""Calls that a model may make where it must make one: a small one that is let goes on for ever."""


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may call, its `parameters` a JSON schema; TGI's clients have them as `arguments`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """Of its arguments: an object, without properties where none are declared."""
        return self.parameters or self.arguments or {"type": "object", "properties": {}}


class Tool(msgspec.Struct, frozen=True):
    """OpenAI's wrapping of a function, the only kind of tool there is."""

    function: Function
    type: str = "function"

    def plain(self) -> dict[str, Any]:
        """Return the tool as templates know it."""
        function = msgspec.structs.replace(self.function, parameters=self.function.schema, arguments=None)
        return {"type": self.type, "function": msgspec.to_builtins(function)}


class FunctionName(msgspec.Struct, frozen=True):
    """Which function."""

    name: str


class ToolChoice(msgspec.Struct, frozen=True):
    """The choice of one function."""

    function: FunctionName
    type: str = "function"


def chosen_tool(tools: list[Tool], choice: str | ToolChoice | None) -> str:
    """Return "none", "auto", "required" or the name of the tool that must be called. Raises `InvalidRequest`.

    Without a choice it is "auto" where there are tools. A name may stand alone, as TGI has it.
    """
    if choice is None:
        return "auto" if tools else "none"
    name = choice if isinstance(choice, str) else choice.function.name
    if isinstance(choice, str) and name in _CHOICES:
        if name == "required" and not tools:
            raise InvalidRequest("is required, and there are no tools", field="tool_choice")
        return name if tools else "none"
    if all(tool.function.name != name for tool in tools):
        raise InvalidRequest(f"names {name[:100]!r}, which is none of the tools", field="tool_choice")
    return name


def check_tools(tools: list[Tool]) -> None:
    """Raise `InvalidRequest` for two tools of one name, or a kind of tool that is none of ours."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("has two functions of one name", field="tools")
    for position, tool in enumerate(tools):
        if tool.type != "function":
            raise InvalidRequest(f"must be function, got {tool.type[:100]!r}", field=f"tools[{position}].type")


def call_of(tools: list[Tool], name: str) -> StructuredOutputs:
    """Hold the text to the arguments of the tool called `name`."""
    tool = next(tool for tool in tools if tool.function.name == name)
    return StructuredOutputs(json=msgspec.json.encode(tool.function.schema).decode())


def calls_of(tools: list[Tool], *, parallel: bool) -> StructuredOutputs:
    """Hold the text to `[{"name": .., "arguments": {..}}, ..]`: a call of any of the tools, with `parallel` up to `MAX_CALLS`."""
    definitions: dict[str, Any] = {}
    calls = []
    for position, tool in enumerate(tools):
        arguments, own = _hoisted(tool.function.schema, f"{position}.")
        definitions |= own
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {
        "type": "array",
        "items": {"anyOf": calls},
        "minItems": 1,
        "maxItems": MAX_CALLS if parallel else 1,
    }
    if definitions:
        schema["$defs"] = definitions
    return StructuredOutputs(json=msgspec.json.encode(schema).decode())


def _hoisted(schema: dict[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a schema that can stand inside another one, and its definitions, `prefix` to their names, for that one's root."""
    definitions: dict[str, Any] = {}
    for key in ("$defs", "definitions"):
        own = schema.get(key)
        if isinstance(own, dict):
            definitions |= {f"{prefix}{name}": _renamed(value, prefix) for name, value in own.items()}
    inner = {
        key: _renamed(value, prefix) for key, value in schema.items() if key not in ("$defs", "definitions", "$schema")
    }
    return inner, definitions


def _renamed(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_renamed(item, prefix) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {key: _renamed(item, prefix) for key, item in value.items()}
    reference = renamed.get("$ref")
    if isinstance(reference, str):
        for root in ("#/$defs/", "#/definitions/"):
            if reference.startswith(root):
                renamed["$ref"] = f"#/$defs/{prefix}{reference.removeprefix(root)}"
    return renamed


_CHOICES = ("none", "auto", "required")
