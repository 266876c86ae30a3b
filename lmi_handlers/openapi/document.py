"""Writes the OpenAPI 3.1 document: the routes and the schemas that they refer to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec

from lmi_handlers import __version__
from lmi_handlers.apis.documentation import Bounds, Documentation
from lmi_handlers.apis.invocations import Invocations
from lmi_handlers.apis.routes import (
    JSON,
    TEXT_GENERATION,
    Action,
    Contents,
    Failure,
    Generation,
    Parameter,
    Route,
    Types,
)
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.json_types import PREFIX, Schema
from lmi_handlers.openapi.failures import failures
from lmi_handlers.openapi.schemas import bind, components
from lmi_handlers.serving.continuation import FIELD as CONTINUATION
from lmi_handlers.web.access_control import needs_permission
from lmi_handlers.web.identity import IDEMPOTENCY_KEY

API_KEY = "api_key"

_RETRIES = Parameter(
    name=IDEMPOTENCY_KEY,
    place="header",
    description="The same text in all attempts at a request. Only the first attempt is generated, and all get its answer.",
)


def openapi_document(
    routes: Sequence[Route],
    documentation: Iterable[Documentation],
    properties: ServingProperties,
    *,
    has_api_key: bool,
    checks_names: bool = False,
) -> bytes:
    """Return the document of these routes, as JSON. Takes a few hundredths of a second.

    `checks_names` is true if the server accepts only certain host names, as on the loopback interface.
    """
    described = _merged(documentation)
    schemas, parts = components(_types(routes), described.names)
    _bind(parts, described, Budget.of(properties))
    if properties.continuation_seconds and not properties.pools:
        _add_continuation(schemas, parts, routes)
    writer = _Writer(
        schemas,
        described.examples,
        has_api_key=has_api_key,
        checks_names=checks_names,
        of_generations=(_RETRIES,) if properties.retry_grace and not properties.pools else (),
    )
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = writer.operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "lmi-handlers",
            "description": "Serves a large language model through the APIs of LMI, TGI, OpenAI, Anthropic and SageMaker.",
            "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": _used(parts, paths, described.kept),
            "securitySchemes": {
                API_KEY: {"type": "http", "scheme": "bearer", "description": "The server's API_KEY, if it has one."}
            },
        },
    }
    return msgspec.json.encode(document)


_CONTINUATION: Schema = {
    "anyOf": [{"type": "string"}, {"type": "null"}],
    "description": "The token of an answer to the same request that a deadline has ended. The answer is the rest of it.",
}


def _merged(documentation: Iterable[Documentation]) -> Documentation:
    names: dict[str, Any] = {}
    examples: dict[Any, object] = {}
    bounds: dict[str, Any] = {}
    union_bounds: dict[str, Any] = {}
    kept: list[str] = []
    for part in documentation:
        names |= part.names
        examples |= part.examples
        bounds |= part.bounds
        union_bounds |= part.union_bounds
        kept += part.kept
    return Documentation(
        names=dict(sorted(names.items())),
        examples=examples,
        bounds=bounds,
        union_bounds=union_bounds,
        kept=tuple(kept),
    )


def _types(routes: Iterable[Route]) -> list[Any]:
    found: list[Any] = []
    for route in routes:
        for contents in (route.endpoint.bodies, route.endpoint.answers):
            for alternatives in contents.values():
                found += alternatives
        for failure in failures(route):
            found += failure.content
    return found


def _bind(parts: Mapping[str, Schema], described: Documentation, budget: Budget) -> None:
    """Add the bounds that the dialects check themselves to the schemas."""
    for name, fields in described.bounds.items():
        within = narrowed(fields, budget)
        for field, schema in parts.get(name, {}).get("properties", {}).items():
            bind(schema, within.get(field, {}))
    for name, keywords in described.union_bounds.items():
        bind(parts[name], keywords)


def _add_continuation(schemas: Mapping[Any, Schema], parts: Mapping[str, Schema], routes: Iterable[Route]) -> None:
    """Add the field that any body for a text may have, in all APIs."""
    endpoints = [route.endpoint for route in routes]
    for endpoint in endpoints:
        if isinstance(endpoint, Generation | Invocations) and endpoint.task in (None, TEXT_GENERATION):
            for kind in endpoint.bodies.get(JSON, ()):
                name = schemas[kind].get("$ref", "").removeprefix(PREFIX)
                if "properties" in parts.get(name, {}):
                    parts[name]["properties"][CONTINUATION] = _CONTINUATION


def _used(parts: Mapping[str, Schema], paths: Mapping[str, Schema], kept: Iterable[str]) -> dict[str, Schema]:
    """Return the components that the paths refer to, directly or not, and those in `kept`."""
    used: set[str] = set()
    found = {*_referred(paths), *kept}
    while new := found - used:
        used |= new
        found = {name for each in new for name in _referred(parts[each])}
    return {name: schema for name, schema in parts.items() if name in used}


def _referred(schema: object) -> list[str]:
    return re.findall(rf'"{re.escape(PREFIX)}(.*?)"', msgspec.json.encode(schema).decode())


class _Writer:
    """Converts routes to OpenAPI objects. `schemas` and `examples` have a schema and an example for each type.

    `of_generations` are the parameters of all routes that generate text.
    """

    def __init__(
        self,
        schemas: Mapping[Any, Schema],
        examples: Mapping[Any, object],
        *,
        has_api_key: bool,
        checks_names: bool,
        of_generations: tuple[Parameter, ...],
    ) -> None:
        self._schemas = schemas
        self._examples = examples
        self._checks_names = checks_names
        self._has_api_key = has_api_key
        self._of_generations = of_generations

    def operation(self, route: Route) -> Schema:
        """Return a route's operation object."""
        operation: Schema = {"operationId": route.name, "summary": route.summary, "tags": [route.tag]}
        generates = isinstance(route.endpoint, Generation | Invocations)
        if parameters := [*route.parameters, *(self._of_generations if generates else ())]:
            operation["parameters"] = [self._parameter(parameter) for parameter in parameters]
        if bodies := route.endpoint.bodies:
            required = not isinstance(route.endpoint, Action)
            operation["requestBody"] = {"required": required, "content": self._contents(bodies)}
        answer: Schema = {"description": "The answer."}
        if route.endpoint.answers:
            answer["content"] = self._contents(route.endpoint.answers, route.endpoint.examples)
        answers = {200: answer} | {failure.status: self._failure(failure) for failure in failures(route)}
        guarded = needs_permission(route.method, route.path)
        if guarded:
            answers[403] = {
                "description": "Sent by a web page whose origin is not allowed, or addressed to a host name that is not allowed."
            }
        elif self._checks_names:
            answers[403] = {"description": "Addressed to a host name that is not allowed."}
        if self._has_api_key and guarded:
            operation["security"] = [{API_KEY: []}]
            answers[401] = {"description": "The API key is missing or wrong."}
        operation["responses"] = {str(status): answers[status] for status in sorted(answers)}
        return operation

    def _contents(self, contents: Contents, examples: Mapping[str, object] | None = None) -> Schema:
        """Return media type objects. `examples` by content type take precedence over those by type."""
        written: Schema = {}
        for content_type, types in contents.items():
            if examples and content_type in examples:
                found = {"example": examples[content_type]}
            else:
                found = {
                    _name(self._schemas[kind]): value for kind in types if (value := self._example(kind)) is not None
                }
            written[content_type] = {"schema": self._schema(types)} | _examples(found)
        return written

    def _example(self, kind: Any) -> object:
        """Return an example of a type, or None."""
        if kind in self._examples or get_origin(kind) is not list:
            return self._examples.get(kind)
        item = self._example(get_args(kind)[0])
        return None if item is None else [item]

    def _schema(self, types: Types) -> Schema:
        schemas = [self._schemas[kind] for kind in types]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _failure(self, failure: Failure) -> Schema:
        examples: dict[str, object] = {f"example {number}": each for number, each in enumerate(failure.examples, 1)}
        response: Schema = {
            "description": failure.reason,
            "content": {"application/json": {"schema": self._schema(failure.content)} | _examples(examples)},
        }
        if failure.retry:
            seconds = {"description": "Seconds to wait before retrying.", "schema": {"type": "integer"}}
            response["headers"] = {"Retry-After": seconds}
        return response

    @staticmethod
    def _parameter(parameter: Parameter) -> Schema:
        schema: Schema = {"type": parameter.type}
        if parameter.values:
            schema["enum"] = list(parameter.values)
        written: Schema = {"name": parameter.name, "in": parameter.place, "description": parameter.description}
        return written | {"required": parameter.place == "path", "schema": schema}


def _name(schema: Schema) -> str:
    """Return the name of an example."""
    if isinstance(items := schema.get("items"), dict):
        return f"list of {_name(items)}"
    return str(schema.get("$ref", "").rpartition("/")[2] or schema.get("type", "example"))


def _examples(found: Mapping[str, object]) -> Schema:
    return {"examples": {name: {"value": value} for name, value in found.items()}} if found else {}


def narrowed(bounds: Bounds, budget: Budget) -> Bounds:
    """Return `bounds`, tightened by the budget of a request."""
    added: dict[str, Mapping[str, Any]] = {
        **budget.keywords(),
        **{name: {"maximum": budget.max_sequences} for name in ("n", "best_of", "num_beams")},
        "inputs": {"maxItems": budget.max_sequences},
    }
    return {name: _both(bounds.get(name, {}), added.get(name, {})) for name in {**bounds, **added}}


def _both(keywords: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of keywords. The stricter bound wins."""
    joined = {**keywords, **others}
    for name in keywords.keys() & others.keys():
        if name == "items":
            joined[name] = _both(keywords[name], others[name])
        elif name.startswith("min"):
            joined[name] = max(keywords[name], others[name])
        elif name.startswith("max"):
            joined[name] = min(keywords[name], others[name])
    return joined
