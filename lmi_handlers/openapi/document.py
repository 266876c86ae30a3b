"""Writes the OpenAPI 3.1 document: the routes and the schemas that they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from formatters.openai import responses
from lmi_handlers import __version__
from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaBody
from lmi_handlers.apis.aleph_alpha.completion import AlephAlphaCompletionBody
from lmi_handlers.apis.openai import body, messages, tools
from lmi_handlers.apis.structured_outputs import Grammar, StructuredOutputsBody
from lmi_handlers.apis.tgi.body import TgiBody, TgiCompatBody, TgiParameters, TokenizeBody
from lmi_handlers.apis.tgi.chat import ChatBody
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.json_types import Schema
from lmi_handlers.openapi import bounds, requests
from lmi_handlers.openapi.routes import Contents, Failure, Parameter, Route, Types, routes
from lmi_handlers.openapi.schemas import bind, components
from lmi_handlers.text.spans import TokenSpan

NAMES: Mapping[str, Any] = {
    "AlephAlphaCompletionRequest": AlephAlphaCompletionBody,
    "AlephAlphaRequest": AlephAlphaBody,
    "ChatRequest": body.ChatCompletionBody,
    "Completion": responses.Completion,
    "CompletionRequest": body.CompletionBody,
    "CompatGenerateRequest": TgiCompatBody,
    "Function": responses.Function,
    "FunctionDefinition": tools.Function,
    "GenerateParameters": TgiParameters,
    "GenerateRequest": TgiBody,
    "TokenizeRequest": TokenizeBody,
    "GrammarType": Grammar,
    "MessageChunk": messages.Part,
    "MessageContent": str | list[messages.Part],
    "NamedToolChoice": tools.ToolChoice,
    "OutputMessage": responses.OutputMessage,
    "Prompt": str | list[int | str | list[int]],
    "ResponseFormat": body.ResponseFormat,
    "SimpleToken": TokenSpan,
    "StructuredOutputs": StructuredOutputsBody,
    "TextMessage": responses.TextMessage,
    "TokenizeResponse": list[TokenSpan],
    "ToolCallMessage": responses.ToolCallMessage,
    "ToolChoice": str | tools.ToolChoice | None,
    "ToolType": str | tools.ToolChoice,
    "Url": messages.ImageUrl,
}
"""TGI's names for types, where they differ from the class names. Clients generated from TGI's document expect them."""

_QUESTION = "What is Deep Learning?"
_PROMPT = {"inputs": _QUESTION, "parameters": {"max_new_tokens": 20}}
_CHAT = {"messages": [{"role": "user", "content": _QUESTION}]}
EXAMPLES: Mapping[Any, object] = {
    requests.PlainPrompt: _QUESTION,
    TgiBody: _PROMPT,
    TokenizeBody: _PROMPT,
    TgiCompatBody: _PROMPT,
    requests.LmiRequest: _PROMPT,
    requests.MindieRequest: _PROMPT,
    ChatBody: _CHAT,
    body.ChatCompletionBody: _CHAT | {"max_tokens": 20},
    AlephAlphaBody: _CHAT | {"model": "any", "max_tokens": 20},
    AlephAlphaCompletionBody: {"model": "any", "prompt": _QUESTION, "maximum_tokens": 20},
    body.CompletionBody: {"prompt": _QUESTION, "max_tokens": 20},
}
"""An example body for each type."""

API_KEY = "api_key"


def openapi_document(properties: ServingProperties, *, has_api_key: bool, checks_names: bool = False) -> bytes:
    """Return the document for this configuration, as JSON. Takes a few hundredths of a second.

    `checks_names` is true if the server accepts only certain host names, as on the loopback interface.
    """
    every = routes(properties)
    schemas, parts = components(_types(every), NAMES)
    _bind(parts, properties)
    writer = _Writer(schemas, has_api_key=has_api_key, checks_names=checks_names)
    paths: dict[str, Schema] = {}
    for route in every:
        paths.setdefault(route.path, {})[route.method] = writer.operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "lmi-handlers",
            "description": "A language model, behind the interfaces of LMI, TGI, OpenAI and SageMaker.",
            "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {
                API_KEY: {"type": "http", "scheme": "bearer", "description": "The server's API_KEY, where it has one."}
            },
        },
    }
    return msgspec.json.encode(document)


def _types(every: Iterable[Route]) -> list[Any]:
    found: list[Any] = []
    for route in every:
        for contents in (route.body, route.answer):
            for alternatives in contents.values():
                found += alternatives
        for failure in route.failures:
            found += failure.content
    return found


def _bind(parts: Mapping[str, Schema], properties: ServingProperties) -> None:
    """Add the bounds that the dialects check themselves to the schemas."""
    known = {
        "GenerateRequest": bounds.PROMPT,
        "CompatGenerateRequest": bounds.PROMPT,
        "GenerateParameters": bounds.of_tgi_parameters(properties),
        "MindieRequest": bounds.MINDIE_PROMPT,
        "MindieParameters": bounds.of_mindie_parameters(properties),
        "LmiRequest": bounds.LMI_PROMPT,
        "LmiParameters": bounds.of_lmi_parameters(),
        "ChatRequest": bounds.of_openai_chat(),
        "CompletionRequest": bounds.of_openai_completion(),
        "AlephAlphaRequest": bounds.of_aleph_alpha(),
        "AlephAlphaCompletionRequest": bounds.of_aleph_alpha_completion(),
        "TextPromptItem": bounds.ALEPH_ALPHA_PROMPT_ITEM,
        "TokenIdsPromptItem": bounds.ALEPH_ALPHA_PROMPT_ITEM,
        "RegexGrammar": bounds.REGEX,
        "StructuredOutputs": bounds.STRUCTURED_OUTPUTS,
        "ChatBody": {},
    }
    budget = Budget.of(properties)
    for name, fields in known.items():
        within = bounds.narrowed(fields, budget)
        for field, schema in parts.get(name, {}).get("properties", {}).items():
            bind(schema, within.get(field, {}))
    bind(parts["Prompt"], {"minItems": 1})
    bind(parts["MessageContent"], {"maxItems": budget.max_content_parts})


class _Writer:
    """Converts routes to OpenAPI objects. `schemas` maps each type to its schema."""

    def __init__(self, schemas: Mapping[Any, Schema], *, has_api_key: bool, checks_names: bool) -> None:
        self._schemas = schemas
        self._checks_names = checks_names
        self._has_api_key = has_api_key

    def operation(self, route: Route) -> Schema:
        """Return a route's operation object."""
        operation: Schema = {"operationId": route.name, "summary": route.summary, "tags": [route.tag]}
        if route.parameters:
            operation["parameters"] = [self._parameter(parameter) for parameter in route.parameters]
        if route.body:
            operation["requestBody"] = {"required": True, "content": self._bodies(route.body)}
        answer: Schema = {"description": "The answer."}
        if route.answer:
            answer["content"] = self._contents(route.answer)
        answers = {200: answer} | {failure.status: self._failure(failure) for failure in route.failures}
        if route.method == "post":
            answers[403] = {
                "description": "Sent by a web page whose origin is not allowed, or addressed to a host name that is not allowed."
            }
        elif self._checks_names:
            answers[403] = {"description": "Addressed to a host name that is not allowed."}
        if self._has_api_key and route.method == "post":
            operation["security"] = [{API_KEY: []}]
            answers[401] = {"description": "The API key is missing or another one."}
        operation["responses"] = {str(status): answers[status] for status in sorted(answers)}
        return operation

    def _bodies(self, contents: Contents) -> Schema:
        return {
            content_type: {
                "schema": self._schema(types),
                "examples": {f"example {number}": {"value": EXAMPLES[kind]} for number, kind in enumerate(types, 1)},
            }
            for content_type, types in contents.items()
        }

    def _contents(self, contents: Contents) -> Schema:
        return {content_type: {"schema": self._schema(types)} for content_type, types in contents.items()}

    def _schema(self, types: Types) -> Schema:
        schemas = [self._schemas[kind] for kind in types]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _failure(self, failure: Failure) -> Schema:
        response: Schema = {
            "description": failure.reason,
            "content": {"application/json": {"schema": self._schema(failure.content)}},
        }
        if failure.retry:
            seconds = {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}
            response["headers"] = {"Retry-After": seconds}
        return response

    @staticmethod
    def _parameter(parameter: Parameter) -> Schema:
        schema: Schema = {"type": "string"}
        if parameter.values:
            schema["enum"] = list(parameter.values)
        written: Schema = {"name": parameter.name, "in": parameter.place, "description": parameter.description}
        return written | {"required": parameter.place == "path", "schema": schema}
