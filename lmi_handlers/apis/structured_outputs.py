"""Structured output in the formats of several APIs: vLLM's `structured_outputs` and `guided_*`, and TGI's grammars."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from lmi_handlers.apis.parameters import Affects
from lmi_handlers.core.errors import InvalidRequest, aliased
from lmi_handlers.core.sampling_params import StructuredOutputs

CONSTRAINT = Affects("structured_outputs")
"""Marks a body's fields for structured output."""


class StructuredOutputsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The constraint on the answer; set exactly one field. null means absent.

    `json` is a schema, or a schema as JSON text.
    """

    json: dict[str, Any] | bool | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    @property
    def is_empty(self) -> bool:
        """True if no field is set."""
        return msgspec.structs.replace(self, json_object=self.json_object or None) == StructuredOutputsBody()

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest` unless exactly one field is set."""
        return StructuredOutputs(
            json=self.json if isinstance(self.json, str | None) else msgspec.json.encode(self.json).decode(),
            json_object=bool(self.json_object),
            regex=self.regex,
            choice=None if self.choice is None else tuple(self.choice),
            grammar=self.grammar,
        )


class Constrained(Protocol):
    """A body with vLLM's fields for structured output."""

    @property
    def structured_outputs(self) -> StructuredOutputsBody | None:
        """The current form, which takes precedence over `guided_*`."""

    @property
    def guided_json(self) -> dict[str, Any] | bool | str | None:
        """Older form of `json`."""

    @property
    def guided_regex(self) -> str | None:
        """Older form of `regex`."""

    @property
    def guided_choice(self) -> list[str] | None:
        """Older form of `choice`."""

    @property
    def guided_grammar(self) -> str | None:
        """Older form of `grammar`."""


def constraint_field(body: Constrained) -> str:
    """Return the field that constrains the answer. If none does, this is `structured_outputs`."""
    return next(iter(_given(body)), "structured_outputs")


def constraint_of(body: Constrained) -> StructuredOutputs | None:
    """Merge both forms. Returns None if neither is used. Raises `InvalidRequest` with the client's name for the field."""
    given = _given(body)
    if not given:
        return None
    field, *others = given
    if others:
        raise InvalidRequest(f"cannot be combined with {others[0]}", field=field)
    with aliased(lambda _: field):
        return given[field].structured_outputs()


def _given(body: Constrained) -> dict[str, StructuredOutputsBody]:
    """Return what each field asks for. An empty `structured_outputs` does not count if there is another field."""
    asked = body.structured_outputs or StructuredOutputsBody()
    older = {
        "json": StructuredOutputsBody(json=body.guided_json),
        "regex": StructuredOutputsBody(regex=body.guided_regex),
        "choice": StructuredOutputsBody(choice=body.guided_choice),
        "grammar": StructuredOutputsBody(grammar=body.guided_grammar),
    }
    given = {
        f"guided_{name}": form for name, form in older.items() if not form.is_empty and getattr(asked, name) is None
    }
    if body.structured_outputs is not None and not (given and asked.is_empty):
        given["structured_outputs"] = asked
    return given


# TGI's grammars, which are accepted in OpenAI's `response_format` too


class JsonGrammar(msgspec.Struct, frozen=True, tag_field="type", tag="json"):
    """A JSON schema, as an object or as JSON text."""

    value: object

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest`."""
        return _schema(self.value)


class JsonObjectGrammar(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON schema. Without one, any JSON object is allowed, as in OpenAI's API."""

    value: object = None

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest`."""
        return StructuredOutputs(json_object=True) if self.value is None else _schema(self.value)


class NamedSchema(msgspec.Struct, frozen=True):
    """A JSON schema in OpenAI's wrapper, whose name is ignored.

    If `strict` is false, objects may have properties that the schema does not declare.
    """

    schema: object
    strict: bool | None = None


class JsonSchemaGrammar(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """A JSON schema with a name."""

    value: NamedSchema

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest`."""
        return _schema(self.value.schema, strict=self.value.strict is not False)


class RegexGrammar(msgspec.Struct, frozen=True, tag_field="type", tag="regex"):
    """A regular expression that the whole text must match."""

    value: str

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest`."""
        return StructuredOutputs(regex=self.value)


Grammar = JsonGrammar | JsonObjectGrammar | JsonSchemaGrammar | RegexGrammar


def _schema(value: object, *, strict: bool = True) -> StructuredOutputs:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"grammar is not valid: {error}") from error
    text = msgspec.json.encode(value).decode()
    if not isinstance(value, dict):
        raise InvalidRequest(f'grammar is not valid: {text:.100} is not of types "boolean", "object"')
    if "properties" not in value:
        raise InvalidRequest("grammar is not valid: Grammar must have a 'properties' field")
    return StructuredOutputs(json=text, strict=strict)
