"""What JSON schemas imply: the same on every library that compiles them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from backends.grammar import GrammarMatcher, Vocabulary, grammar_text
from backends.json_schema import explicit_json, explicit_schema
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import StructuredOutputs
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle

EOS = 256
VOCAB_SIZE = 257
Accepts = Callable[[StructuredOutputs, str], bool]

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TGI: dict[str, Any] = {
    "properties": {
        "location": {"type": "string"},
        "activity": {"type": "string"},
        "animals_seen": {"type": "integer", "minimum": 1, "maximum": 5},
        "animals": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["location", "activity", "animals_seen", "animals"],
}
"""The example in TGI's documentation of guidance."""
SEEN = '{"location": "a", "activity": "b", "animals_seen": 1, "animals": ["c"]'

CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "TGI's example": (TGI, [SEEN + "}"], ["1", SEEN + ', "z": 1}']),
    "anything": ({}, ["1", '{"a": 1}', "[1]", '"a"'], []),
    "any object": ({"type": "object"}, ["{}", '{"a": 1}'], ["1"]),
    "no properties": ({"type": "object", "properties": {}}, ["{}"], ['{"a": 1}']),
    "one property": (NAME, ['{"name": "a"}'], ["{}", '{"name": "a", "z": 1}']),
    "open": (NAME | {"additionalProperties": True}, ['{"name": "a"}', '{"name": "a", "z": 1}'], ["{}", "1"]),
    "others of a type": (
        NAME | {"additionalProperties": {"type": "integer"}},
        ['{"name": "a"}', '{"name": "a", "z": 1}'],
        ['{"name": "a", "z": "b"}'],
    ),
    "only others": ({"additionalProperties": {"type": "integer"}}, ["{}", '{"z": 1}'], ["1", '{"z": "a"}']),
    "nullable": ({"type": ["object", "null"], "properties": {"a": {}}}, ["null", "{}"], ['{"b": 1}', "1"]),
    "nested": (
        {"properties": {"a": {"properties": {"b": {"type": "integer"}}, "required": ["b"]}}, "required": ["a"]},
        ['{"a": {"b": 1}}'],
        ['{"a": 1}', '{"a": {"b": 1, "c": 1}}', '{"a": {"b": 1}, "c": 1}'],
    ),
    "array without a type": ({"items": {"type": "integer"}}, ["[1]", "[1, 2]"], ["1", '["a"]', "{}"]),
    "array of objects": (
        {"type": "array", "items": NAME},
        ['[{"name": "a"}]', '[{"name": "a"}, {"name": "b"}]'],
        ['[{"name": "a", "z": 1}]'],
    ),
    "tuple": ({"type": "array", "prefixItems": [{"type": "integer"}]}, ["[1]"], ["[1, 2]"]),
    "longer tuple": (
        {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
        ["[1]", '[1, "a"]'],
        ["[1, 2]", "1"],
    ),
    "definition": (
        {"$defs": {"N": NAME}, "properties": {"a": {"$ref": "#/$defs/N"}}, "required": ["a"]},
        ['{"a": {"name": "b"}}'],
        ['{"a": {"name": "b", "z": 1}}', '{"a": {"name": "b"}, "z": 1}'],
    ),
    "recursion": (
        {"$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/T"}}}}, "$ref": "#/$defs/T"},
        ["{}", '{"t": {"t": {}}}'],
        ['{"t": {"u": {}}}', '{"t": 1}'],
    ),
    "optional definition": (
        {"$defs": {"N": NAME}, "properties": {"a": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}}},
        ["{}", '{"a": null}', '{"a": {"name": "b"}}'],
        ['{"a": {"name": "b", "z": 1}}', '{"b": 1}'],
    ),
    "either": (
        {"anyOf": [NAME, {"properties": {"n": {"type": "integer"}}, "required": ["n"]}]},
        ['{"name": "a"}', '{"n": 1}'],
        ["1", '{"name": "a", "n": 1}'],
    ),
    "allOf around one": ({"allOf": [NAME], "description": "d"}, ['{"name": "a"}'], ['{"name": "a", "z": 1}', "{}"]),
    "a property called properties": (
        {"properties": {"properties": {"type": "integer"}}},
        ["{}", '{"properties": 1}'],
        ['{"properties": {}}', '{"z": 1}'],
    ),
    "required but not declared": (
        {"type": "object", "properties": {}, "required": ["a"]},
        ['{"a": 1}', '{"a": "b"}'],
        ["{}", '{"a": 1, "b": 1}'],
    ),
    "a constant that looks like a schema": ({"const": {"properties": {}}}, ['{"properties":{}}'], ["{}"]),
}
"""A schema, texts that match it, and texts that do not."""


@pytest.fixture(scope="module")
def by_llguidance(tmp_path_factory: pytest.TempPathFactory) -> Accepts:
    folder = tmp_path_factory.mktemp("bytes")
    build_byte_bundle(folder)
    tokenizer = Vocabulary(str(folder / TOKENIZER_FILE), VOCAB_SIZE, (EOS,)).load()

    def accepts(wanted: StructuredOutputs, text: str) -> bool:
        matcher = GrammarMatcher(tokenizer, grammar_text(wanted), VOCAB_SIZE)
        for byte in text.encode():
            if not matcher.allowed()[byte]:
                return False
            matcher.advance(byte)
        return matcher.ended or bool(matcher.allowed()[EOS])

    return accepts


@pytest.fixture(scope="module")
def by_xgrammar() -> Accepts:
    """As vLLM and TensorRT-LLM call it."""
    xgrammar: Any = importlib.import_module("xgrammar")  # not installed where types are checked
    vocabulary = [bytes([byte]) for byte in range(EOS)] + [b"</s>"]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[EOS])
    compiler = xgrammar.GrammarCompiler(info)

    def accepts(wanted: StructuredOutputs, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(explicit_json(wanted)))
        return bool(matcher.accept_string(text) and matcher.accept_token(EOS))

    return accepts


def check(accepts: Accepts, name: str) -> None:
    schema, valid, invalid = CASES[name]
    wanted = StructuredOutputs(json=json.dumps(schema))
    assert [text for text in valid + invalid if accepts(wanted, text)] == valid


@pytest.mark.parametrize("name", CASES)
def test_schemas_mean_the_same_on_llguidance(by_llguidance: Accepts, name: str) -> None:
    check(by_llguidance, name)


@pytest.mark.needs("xgrammar")
@pytest.mark.parametrize("name", CASES)
def test_schemas_mean_the_same_on_xgrammar(by_xgrammar: Accepts, name: str) -> None:
    check(by_xgrammar, name)


def test_only_declared_properties_of_patterns(by_llguidance: Accepts) -> None:
    """xgrammar ignores `patternProperties`."""
    wanted = StructuredOutputs(json='{"patternProperties": {"^x": {"type": "integer"}}}')
    assert by_llguidance(wanted, '{"x1": 1}')
    assert not any(by_llguidance(wanted, text) for text in ('{"y": 1}', '{"x1": "a"}', "1"))


@pytest.mark.needs("xgrammar")
def test_without_strict_objects_are_open(by_llguidance: Accepts, by_xgrammar: Accepts) -> None:
    wanted = StructuredOutputs(json=json.dumps({"properties": {"a": NAME}, "required": ["a"]}), strict=False)
    closed = StructuredOutputs(json=json.dumps(NAME | {"additionalProperties": False}), strict=False)
    for accepts in (by_llguidance, by_xgrammar):
        assert accepts(wanted, '{"a": {"name": "b", "z": 1}, "z": 1}')
        assert not accepts(wanted, "1")
        assert not accepts(closed, '{"name": "b", "z": 1}')


BASE = {"$defs": {"N": NAME}}
OTHER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOGETHER: dict[str, dict[str, Any]] = {
    "allOf": {"allOf": [NAME, OTHER]},
    "allOf with a definition": BASE | {"allOf": [{"$ref": "#/$defs/N"}, OTHER]},
    "a definition and properties": BASE | {"$ref": "#/$defs/N"} | OTHER,
    "properties and allOf": OTHER | {"allOf": [NAME]},
    "properties and anyOf": OTHER | {"anyOf": [NAME]},
    "two levels": BASE | {"allOf": [{"anyOf": [{"$ref": "#/$defs/N"}]}, OTHER]},
}


@pytest.mark.parametrize("name", TOGETHER)
def test_schemas_that_describe_one_object_together(by_llguidance: Accepts, name: str) -> None:
    """Closed one by one, no object would match all of them. xgrammar does not enforce these at all."""
    wanted = StructuredOutputs(json=json.dumps(TOGETHER[name]))
    assert any(by_llguidance(wanted, text) for text in ('{"name": "a", "n": 1}', '{"n": 1, "name": "a"}'))
    assert not by_llguidance(wanted, '{"name": "a"}')


@pytest.mark.parametrize(
    "schema",
    [
        '{"allOf": {}, "properties": [], "required": {}, "$ref": 5}',
        '{"allOf": [1, {"$ref": "#/allOf/9"}, {"$ref": "#/allOf/x"}, {"$ref": "#/allOf/1/y"}, {"$ref": "else#"}]}',
        '{"properties": {"a": 1, "b": true}, "required": [1, null], "items": [[]], "$defs": 3}',
        '{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}',
    ],
)
def test_any_schema_can_be_read(schema: str) -> None:
    explicit_schema(schema, strict=True)


@pytest.mark.parametrize("text", ["{", "1", "[]", "false", "[" * 100_000])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="structured_outputs: cannot be compiled"):
        explicit_json(StructuredOutputs(json=text))


def test_large_schemas_take_linear_time() -> None:
    """4,000 compositions that refer to one definition of 4,000 properties would be 16 million steps one by one."""
    shared: dict[str, Any] = {"properties": {f"p{number}": {} for number in range(4000)}}
    parts = {f"c{number}": {"allOf": [{"$ref": "#/$defs/N"}, NAME]} for number in range(4000)}
    made = explicit_schema(json.dumps({"$defs": {"N": shared}, "properties": parts}), strict=True)
    assert made["$defs"]["N"]["additionalProperties"] is True
    assert made["additionalProperties"] is False
