"""Tools: which ones the model may call, and the constraint on the answer if it must call one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from lmi_handlers.core.allowed_values import RULE
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import StructuredOutputs

MAX_CALLS = 8
"""Maximum tool calls if the model must make one. Without a limit, small models never stop."""

DeclaredName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-zA-Z0-9_.:/-]{1,128}(?!\n)$",  # `$` alone would allow a final newline
        extra={RULE: "must have 1 to 128 ASCII letters, digits, underscores, dots, colons, slashes or hyphens"},
    ),
]
"""OpenAI's names of functions, plus longer ones with dots, colons and slashes, as MCP clients use."""


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may call. `parameters` is a JSON schema; TGI's clients call it `arguments`."""

    name: DeclaredName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments. If none is declared, it only allows `{}`."""
        return self.parameters or self.arguments or _NO_PARAMETERS | {"additionalProperties": False}


class Tool(msgspec.Struct, frozen=True):
    """A tool. Only functions are supported."""

    function: Function
    type: Literal["function"] = "function"

    def plain(self) -> dict[str, Any]:
        """Return the tool for chat templates, which expect `parameters` to be present."""
        declared = self.function.parameters or self.function.arguments or _NO_PARAMETERS
        function = msgspec.structs.replace(self.function, parameters=declared, arguments=None)
        return {"type": self.type, "function": msgspec.to_builtins(function)}


class FunctionName(msgspec.Struct, frozen=True):
    """The name of a function."""

    name: str


class ToolChoice(msgspec.Struct, frozen=True):
    """Names the function that must be called. OpenAI's `allowed_tools` and `custom` are not supported."""

    function: FunctionName
    type: Literal["function"] = "function"


def chosen_tool(tools: list[Tool], choice: str | ToolChoice | FunctionName | None, field: str = "tool_choice") -> str:
    """Return "none", "auto", "required" or the name of the tool that must be called.

    Defaults to "auto" if there are tools, else to "none". A plain name is accepted too, as in TGI. Raises
    `InvalidRequest`, which names `field`.
    """
    if choice is None:
        return "auto" if tools else "none"
    match choice:
        case ToolChoice():
            name = choice.function.name
        case FunctionName():
            name = choice.name
        case _:
            name = choice
    if isinstance(choice, str) and name in _CHOICES:
        if name == "required" and not tools:
            raise InvalidRequest("requires a tool call, but there are no tools", field=field)
        return name if tools else "none"
    if all(tool.function.name != name for tool in tools):
        raise InvalidRequest(f"names {name[:100]!r}, which is not one of the tools", field=field)
    return name


def check_tools(tools: list[Tool], field: str = "tools") -> None:
    """Raise `InvalidRequest` if two tools, which are in `field`, have the same name."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("contains two functions with the same name", field=field)


def call_of(tools: list[Tool], name: str) -> StructuredOutputs:
    """Constrain the text to the arguments of the tool called `name`."""
    tool = next(tool for tool in tools if tool.function.name == name)
    return StructuredOutputs(json=msgspec.json.encode(tool.function.schema).decode())


def calls_of(tools: list[Tool], field: str, *, parallel: bool) -> StructuredOutputs:
    """Constrain the text to `[{"name": .., "arguments": {..}}, ..]`: a call to any tool, or with `parallel` several.

    `MAX_CALLS` is the limit. Raises `InvalidRequest`, which names a place in `field`, if a schema is nested too deeply.
    """
    definitions: dict[str, object] = {}
    calls = []
    for position, tool in enumerate(tools):
        place = f"#/$defs/{position}"
        try:
            definitions[str(position)] = _moved(tool.function.schema, place)
        except RecursionError as error:
            raise InvalidRequest("the schema is nested too deeply", field=f"{field}[{position}]") from error
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
    """Return a schema rewritten for embedding in another one at `place`, a JSON pointer."""
    # These belong at a document's root. With an `$id` here, references would resolve against it instead of that root.
    inner = {keyword: value for keyword, value in schema.items() if keyword not in ("$id", "$schema")}
    return _with_references(inner, str(schema.get("$id", "")).rstrip("#"), place)


def _with_references(value: Any, document: str, place: str) -> Any:
    """Rewrite pointers into the schema itself, whose URI is `document`, to point below `place`."""
    if isinstance(value, list):
        return [_with_references(item, document, place) for item in value]
    if not isinstance(value, dict) or "$id" in value:  # an `$id` makes it a separate document
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
