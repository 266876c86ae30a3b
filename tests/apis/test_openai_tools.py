"""Which tools and tool choices are valid, and which grammar forced tool calls have. No server is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from capabilities import facts
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schemas import examples
from jsonschema import Draft202012Validator

from backends.grammar import GrammarMatcher, Vocabulary, grammar_text
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import ChatDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.core.sampling_params import StructuredOutputs
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle

BUDGET = Budget.of(ServingProperties())

Schema = dict[str, Any]


def parse(tools: list[Any], choice: Any) -> Parsed:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "tool_choice": choice}
    dialect = ChatDialect(lambda: facts(chat_template="{{ tools }}"), budget=BUDGET)
    return dialect.parse(Payload(data=json.dumps(body).encode(), request_id="r"))


def prompt_of(parsed: Parsed) -> ChatPrompt:
    [prompt] = parsed.request.prompts
    assert isinstance(prompt.content, ChatPrompt)
    return prompt.content


def function(name: str, **fields: Any) -> Schema:
    return {"type": "function", "function": {"name": name, **fields}}


def held_to(tools: list[Any], choice: Any) -> StructuredOutputs:
    wanted = parse(tools, choice).request.sampling_params.structured_outputs
    assert wanted is not None
    return wanted


def schema_of(tools: list[Any], choice: Any) -> Schema:
    schema: Schema = json.loads(held_to(tools, choice).json or "")
    return schema


def calls(*made: tuple[str, Any]) -> list[Schema]:
    return [{"name": name, "arguments": arguments} for name, arguments in made]


# References in the tools' schemas


OTHER = function("other", parameters={"properties": {"a": {"type": "boolean"}}, "$defs": {"a": {"type": "boolean"}}})
"""A tool with other definitions under the same names."""

TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
REFERRING: dict[str, tuple[Schema, Any, Any]] = {
    "the whole": (
        TREE | {"additionalProperties": False},
        {"children": [{"children": []}]},
        {"children": [{"name": "f", "arguments": {}}]},
    ),
    "a property, as zod-to-json-schema has it": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}},
            "required": ["b"],
        },
        {"b": "x"},
        {"b": True},
    ),
    "definitions, and nothing beside the reference": (
        {"$ref": "#/definitions/t", "definitions": {"t": TREE, "unused": {}}},
        {"children": [{}]},
        [],
    ),
    "definitions that are called as keywords are": (
        {
            "properties": {"a": {"$ref": "#/definitions/enum"}},
            "definitions": {"enum": {"$ref": "#/definitions/default"}, "default": {"type": "string"}},
        },
        {"a": "x"},
        {"a": 1},
    ),
    "escapes": (
        {
            "properties": {
                "a b": {"type": "null"},
                "c/d": {"$ref": "#/properties/a%20b"},
                "e": {"$ref": "#/properties/c~1d"},
            }
        },
        {"e": None},
        {"e": 1},
    ),
    "the schema's own URI": (
        {
            "$id": "https://example.com/tool.json#",
            "properties": {"a": {"$ref": "https://example.com/tool.json#/$defs/a"}, "b": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"type": "string"}},
        },
        {"a": "x", "b": "x"},
        {"a": True},
    ),
    "the schema's own URI without a fragment": (
        {"$id": "T0", "type": "object", "properties": {"a": {"$ref": "T0"}}},
        {"a": {"a": {}}},
        {"a": {"a": 1}},
    ),
    "a schema inside with a URI of its own": (
        {
            "properties": {
                "a": {"$id": "T1", "type": "object", "properties": {"b": {"$ref": "T1"}, "c": {"$ref": "#/$defs/a"}}}
                | {"$defs": {"a": {"type": "null"}}}
            },
            "$defs": {"a": {"type": "string"}},
        },
        {"a": {"b": {"c": None}}},
        {"a": {"b": {"c": "x"}}},
    ),
    "an anchor": (
        {"properties": {"a": {"$ref": "#part"}, "b": {"$anchor": "part", "type": "string"}}},
        {"a": "x"},
        {"a": 1},
    ),
    "what only looks like one": (
        {
            "properties": {
                "$ref": {"const": {"$ref": "#"}},
                "enum": {"enum": [{"$ref": "#"}], "default": {"$ref": "#"}, "examples": [{"$ref": "#"}]},
                "const": {"$ref": "#/properties/enum"},
            }
        },
        {"$ref": {"$ref": "#"}, "const": {"$ref": "#"}},
        {"const": {"$ref": "#/$defs/1"}},
    ),
}
"""A schema, a valid instance and an invalid one."""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """The vocabulary of the byte tokenizer: each token id is a byte."""
    directory: Path = tmp_path_factory.mktemp("bytes")
    build_byte_bundle(directory)
    return Vocabulary(str(directory / TOKENIZER_FILE), 257, (256,))


def takes(vocabulary: Vocabulary, wanted: StructuredOutputs, value: Any) -> bool:
    """Whether a model constrained by the schema can generate `value`."""
    grammar = GrammarMatcher(vocabulary.load(), grammar_text(wanted), vocabulary.vocab_size)
    for byte in json.dumps(value).encode():
        if not grammar.allowed()[byte]:
            return False
        grammar.advance(byte)
    return grammar.ended or bool(grammar.allowed()[256])


@pytest.mark.parametrize("name", REFERRING)
def test_references_refer_to_the_tools_own_schema(vocabulary: Vocabulary, name: str) -> None:
    """Both for a tool that must be called and for one of several tools."""
    schema, valid, invalid = REFERRING[name]
    tools = [OTHER, function("f", parameters=schema), function("other2", parameters=TREE)]
    named, required = held_to(tools, "f"), held_to(tools, "required")
    assert takes(vocabulary, named, valid)
    assert not takes(vocabulary, named, invalid)
    assert takes(vocabulary, required, calls(("f", valid), ("other2", {"children": [{}]}), ("other", {"a": True})))
    assert not takes(vocabulary, required, calls(("f", invalid)))
    assert not takes(vocabulary, required, calls(("f", valid), ("other", {"a": "x"})))


NAMES = st.sampled_from(["a", "b", "const", "default", "$ref", "$id", "properties"])
POINTERS = ["#", "#/properties/a", "#/$defs/default", "#/definitions/const", "T#/$defs/default", "T"]
VALUES = st.recursive(
    st.sampled_from([None, True, 1, "a", {"$ref": "#"}, {"$ref": "#/$defs/default"}]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=2) | st.lists(inner, max_size=2),
    max_leaves=4,
)


def containers(parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Schemas of arrays and objects."""
    members = st.dictionaries(NAMES, parts, min_size=1, max_size=3)
    return (
        members.map(lambda named: {"type": "object", "properties": named})
        | st.tuples(NAMES, parts).map(lambda pair: {"type": "object", "patternProperties": {pair[0]: pair[1]}})
        | parts.map(lambda part: {"type": "object", "dependentSchemas": {"const": {"properties": {"const": part}}}})
        | parts.map(lambda part: {"type": "object", "additionalProperties": part})
        | parts.map(lambda part: {"type": "array", "prefixItems": [part], "items": False})
    )


def referring_schemas() -> st.SearchStrategy[Schema]:
    """Schemas that refer to themselves or to parts of themselves, but only for parts of the current value."""
    leaves: st.SearchStrategy[Schema] = (
        st.sampled_from(POINTERS).map(lambda pointer: {"$ref": pointer})
        | VALUES.map(lambda value: {"const": value, "default": {"$ref": "#"}})
        | VALUES.map(lambda value: {"enum": [value, None], "examples": [{"$ref": "#"}]})
        | st.sampled_from([{"type": "integer"}, {"type": "string"}])
    )
    parts = st.recursive(
        leaves,
        lambda inner: containers(inner) | st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
        max_leaves=3,
    )
    return st.tuples(*[containers(parts)] * 4).map(
        lambda made: (
            made[0]
            | {"$id": "T", "$schema": Draft202012Validator.META_SCHEMA["$id"]}
            | {"properties": made[0].get("properties", {}) | {"a": made[1]}}
            | {"$defs": {"default": made[2]}, "definitions": {"const": made[3]}}
        )
    )


@st.composite
def values_of(draw: st.DrawFn, schema: Any, root: Schema, depth: int = 6) -> Any:
    """Values that are probably valid for the schema, which is part of `root`."""

    def one(part: Any) -> Any:
        return draw(values_of(part, root, depth - 1))

    if depth == 0 or draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    match schema:
        case {"$ref": pointer}:
            target: Any = root
            for name in pointer.partition("#")[2].split("/")[1:]:
                target = target[name]
            return one(target)
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"anyOf": parts}:
            return one(draw(st.sampled_from(parts)))
        case {"prefixItems": [part]}:
            return [one(part)]
        case {"dependentSchemas": {"const": part}}:
            return one(part)
        case {"patternProperties": named, **rest} | {"properties": named, **rest}:
            named = rest.get("properties", {}) | named
            return {name: one(named[name]) for name in draw(st.sets(st.sampled_from(sorted(named)), min_size=1))}
        case {"additionalProperties": part}:
            return {draw(NAMES): one(part)}
    return draw(st.sampled_from([1, "a"]))


def agree(schemas: list[Schema], position: int, value: Any) -> bool:
    """Check that `value` is as valid as arguments of the tool as it is for the schema. Returns whether it is valid."""
    tools = [function(f"f{number}", parameters=schema) for number, schema in enumerate(schemas)]
    valid = Draft202012Validator(schemas[position]).is_valid(value)
    call = calls((f"f{position}", value))
    assert Draft202012Validator(schema_of(tools, "required")).is_valid(call) == valid
    return valid


ARGUMENTS = st.lists(referring_schemas(), min_size=2, max_size=2).flatmap(
    lambda schemas: st.integers(0, 1).flatmap(
        lambda position: st.tuples(st.just(schemas), st.just(position), values_of(schemas[position], schemas[position]))
    )
)


@settings(deadline=None)
@given(case=ARGUMENTS)
def test_arguments_are_as_valid_as_for_the_tools_own_schema(case: tuple[list[Schema], int, Any]) -> None:
    agree(*case)


def test_examples_include_valid_and_invalid_arguments() -> None:
    verdicts = [agree(*case) for case in examples(ARGUMENTS, 100)]
    assert 10 < sum(verdicts) < 90


@pytest.mark.parametrize(
    "schema", [{"$ref": 5}, {"$ref": {"$ref": "#"}}, {"$id": 5}, {"properties": [1]}, {"$defs": None}, {"anyOf": "x"}]
)
def test_invalid_schemas_are_left_to_the_grammar_compiler(schema: Schema) -> None:
    assert "f" in (held_to([function("f", parameters=schema)], "required").json or "")


def test_each_schema_gets_its_own_definition() -> None:
    schema = {"$schema": "x:y", "$id": "T", "properties": {"a": {"$ref": "#/properties/b"}}}
    call = {"type": "object", "required": ["name", "arguments"], "additionalProperties": False}
    assert schema_of([function("f", parameters=schema), function("g")], "required") == {
        "type": "array",
        "items": {
            "anyOf": [
                call | {"properties": {"name": {"const": "f"}, "arguments": {"$ref": "#/$defs/0"}}},
                call | {"properties": {"name": {"const": "g"}, "arguments": {"$ref": "#/$defs/1"}}},
            ]
        },
        "minItems": 1,
        "maxItems": 8,
        "$defs": {
            "0": {"properties": {"a": {"$ref": "#/$defs/0/properties/b"}}},
            "1": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    }


def test_schema_that_is_nested_too_deeply() -> None:
    schema: Schema = {}
    for _ in range(400):
        schema = {"anyOf": [schema]}
    with pytest.raises(InvalidRequest, match="too deep") as caught:
        parse([OTHER, function("f", parameters=schema)], "required")
    assert caught.value.field == "tools[1]"


# Functions without parameters


@pytest.mark.parametrize("fields", [{}, {"parameters": None}, {"parameters": {}}])
def test_function_without_parameters_gets_no_arguments(vocabulary: Vocabulary, fields: Schema) -> None:
    tools = [function("f", **fields), OTHER]
    assert takes(vocabulary, held_to(tools, "f"), {})
    assert not takes(vocabulary, held_to(tools, "f"), {"a": 1})
    assert takes(vocabulary, held_to(tools, "required"), calls(("f", {}), ("other", {"a": True})))
    assert not takes(vocabulary, held_to(tools, "required"), calls(("f", {"a": 1})))


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"parameters": TREE}, TREE),
        ({"arguments": TREE}, TREE),
        ({"parameters": {"$id": "T", "$ref": "#"}}, {"$id": "T", "$ref": "#"}),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required", "f"])
def test_templates_receive_tools_as_declared(choice: str, fields: Schema, shown: Schema) -> None:
    prompt = prompt_of(parse([function("f", description="x", **fields)], choice))
    assert prompt.tools == [function("f", description="x", parameters=shown)]


# Valid tools


@pytest.mark.parametrize("name", ["f", "a" * 128, "get_weather-2", "server.tool", "mcp__a:b/c"])
def test_names_of_functions(name: str) -> None:
    prompt = prompt_of(parse([function(name)], {"type": "function", "function": {"name": name}}))
    assert prompt.tools is not None
    assert prompt.tools[0]["function"]["name"] == name


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "f\n", "\nf", "f()", "é", 'a"', "\0"])
@pytest.mark.parametrize("choice", ["none", "auto", "required"])
def test_invalid_function_names(choice: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match="must have 1 to 128 ASCII letters") as caught:
        parse([OTHER, function(name)], choice)
    assert caught.value.field == "tools[1].function.name"


@pytest.mark.parametrize("choice", ["none", "auto", "required", "f"])
def test_function_names_must_be_unique(choice: str) -> None:
    with pytest.raises(InvalidRequest, match="same name") as caught:
        parse([function("f"), OTHER, function("f", parameters=TREE)], choice)
    assert caught.value.field == "tools"


@pytest.mark.parametrize(
    ("tool", "field", "message"),
    [
        ({"type": "custom", "custom": {"name": "f"}}, "tools[1].type", "'custom'"),
        ({"type": "web_search"}, "tools[1].type", "'web_search'"),
        ({"type": "bogus", "function": {"name": "f"}}, "tools[1].type", "'bogus'"),
        ({"type": "function"}, "tools[1]", "`function`"),
        ({"type": "function", "name": "f"}, "tools[1]", "`function`"),
    ],
)
def test_invalid_tools(tool: Schema, field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse([OTHER, tool], "auto")
    assert caught.value.field == field


ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}


@pytest.mark.parametrize(
    ("choice", "field", "message"),
    [
        ({"type": "allowed_tools", "allowed_tools": ALLOWED}, "tool_choice.type", "'allowed_tools'"),
        ({"type": "allowed_tools", **ALLOWED}, "tool_choice.type", "'allowed_tools'"),
        ({"type": "custom", "custom": {"name": "other"}}, "tool_choice.type", "'custom'"),
        ({"type": "bogus", "function": {"name": "other"}}, "tool_choice.type", "'bogus'"),
        ({"type": "function"}, "tool_choice", "`function`"),
        ({"type": "function", "function": {"name": "nobody"}}, "tool_choice", "not one of the tools"),
    ],
)
def test_invalid_tool_choices(choice: Schema, field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse([OTHER], choice)
    assert caught.value.field == field


def test_tool_choice_without_a_type_selects_a_function() -> None:
    """huggingface_hub sends it like this."""
    assert held_to([OTHER], {"function": {"name": "other"}}) == held_to([OTHER], "other")
