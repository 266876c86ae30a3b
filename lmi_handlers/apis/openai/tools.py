"""Tools: what a request may call, and what the answer is held to where it must."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import StructuredOutputs

MAX_CALLS = 8
"""Calls that a model may make where it must make one: a small one that is let goes on for ever."""

FUNCTION_NAME = r"^[a-zA-Z0-9_.:/-]{1,128}(?!\n)$"
"""OpenAI's names, and the longer ones with dots, colons and slashes that clients of MCP have. `$` alone lets a line end pass."""


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may call, its `parameters` a JSON schema; TGI's clients have them as `arguments`."""

    name: Annotated[str, msgspec.Meta(pattern=FUNCTION_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """Of its arguments: `{}` and nothing else where none are declared."""
        return self.parameters or self.arguments or _NO_PARAMETERS | {"additionalProperties": False}


class Tool(msgspec.Struct, frozen=True):
    """OpenAI's wrapping of a function, the only kind of tool there is."""

    function: Function
    type: Literal["function"] = "function"

    def plain(self) -> dict[str, Any]:
        """Return the tool as templates know it, which count on `parameters`."""
        declared = self.function.parameters or self.function.arguments or _NO_PARAMETERS
        function = msgspec.structs.replace(self.function, parameters=declared, arguments=None)
        return {"type": self.type, "function": msgspec.to_builtins(function)}


class FunctionName(msgspec.Struct, frozen=True):
    """Which function."""

    name: str


class ToolChoice(msgspec.Struct, frozen=True):
    """The choice of one function. OpenAI's `allowed_tools` and `custom` are none of ours."""

    function: FunctionName
    type: Literal["function"] = "function"


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
    """Raise `InvalidRequest` for two tools of one name."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("has two functions of one name", field="tools")


def call_of(tools: list[Tool], name: str) -> StructuredOutputs:
    """Hold the text to the arguments of the tool called `name`."""
    tool = next(tool for tool in tools if tool.function.name == name)
    return StructuredOutputs(json=msgspec.json.encode(tool.function.schema).decode())


def calls_of(tools: list[Tool], *, parallel: bool) -> StructuredOutputs:
    """Hold the text to `[{"name": .., "arguments": {..}}, ..]`: a call of any of the tools, with `parallel` up to `MAX_CALLS`.

    Raises `InvalidRequest` for a schema that is nested too deeply.
    """
    definitions: dict[str, object] = {}
    calls = []
    for position, tool in enumerate(tools):
        place = f"#/$defs/{position}"
        try:
            definitions[str(position)] = _moved(tool.function.schema, place)
        except RecursionError as error:
            raise InvalidRequest("its schema is nested too deeply", field=f"tools[{position}].function") from error
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": {"$ref": place}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = {
        "type": "array",
        "items": {"anyOf": calls},
        "minItems": 1,
        "maxItems": MAX_CALLS if parallel else 1,
        "$defs": definitions,
    }
    return StructuredOutputs(json=msgspec.json.encode(schema).decode())


def _moved(schema: dict[str, Any], place: str) -> object:
    """Return a whole schema as it reads at `place`, a JSON pointer, inside of another one."""
    # These are for the root of a document: with an `$id` here, references would be to it and not to that root.
    inner = {keyword: value for keyword, value in schema.items() if keyword not in ("$id", "$schema")}
    return _with_references(inner, str(schema.get("$id", "")).rstrip("#"), place)


def _with_references(value: Any, document: str, place: str) -> Any:
    """Return a part of a schema with its pointers into `document`, the schema's own URI, as pointers into what is at `place`."""
    if isinstance(value, list):
        return [_with_references(item, document, place) for item in value]
    if not isinstance(value, dict) or "$id" in value:  # with an `$id`, a document of its own
        return value
    moved: dict[str, Any] = {}
    for keyword, item in value.items():
        if keyword == "$ref" and isinstance(item, str):
            target, _, pointer = item.partition("#")
            is_own = target in ("", document) and pointer[:1] in ("", "/")  # any other fragment is an `$anchor`
            moved[keyword] = place + pointer if is_own else item
        elif keyword in _NAMED_SCHEMAS and isinstance(item, dict):
            moved[keyword] = {name: _with_references(part, document, place) for name, part in item.items()}
        else:
            moved[keyword] = item if keyword in _VALUES else _with_references(item, document, place)
    return moved


_CHOICES = ("none", "auto", "required")
_NO_PARAMETERS = {"type": "object", "properties": {}}
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_VALUES = ("const", "enum", "default", "examples")
