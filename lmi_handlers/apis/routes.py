"""The declaration of an API's routes: once, for the HTTP layer and for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.core.capabilities import ServedTask
from lmi_handlers.core.errors import (
    DeadlineExceeded,
    EngineDead,
    EngineNotReady,
    InvalidBody,
    InvalidJson,
    InvalidRequest,
    LMIError,
    MalformedRequest,
    PayloadTooLarge,
    QueueFull,
    RequestFailed,
    RequestTimeout,
    UnsupportedMediaType,
)
from lmi_handlers.serving.served_model import ServedModel

JSON = "application/json"
JSON_LINES = "application/jsonlines"
EVENTS = "text/event-stream"
TEXT = "text/plain"
HTML = "text/html"
ANY = "*/*"

TEXT_GENERATION: ServedTask = "text-generation"
TEXT_EMBEDDING: ServedTask = "text-embedding"
TEXT_RANKING: ServedTask = "text-ranking"

Types = tuple[Any, ...]
"""Alternative types."""

Contents = Mapping[str, Types]
"""Types by content type. For JSON lines, the types of a line; for server-sent events, those of an event's data."""

Kinds = tuple[type[LMIError], ...]
"""Error classes that a route may answer with."""

READING: Kinds = (
    InvalidJson,
    InvalidBody,
    InvalidRequest,
    MalformedRequest,
    RequestTimeout,
    PayloadTooLarge,
    UnsupportedMediaType,
    EngineNotReady,
    QueueFull,
)
"""Errors of any route that reads a body."""

GENERATING: Kinds = (*READING, DeadlineExceeded, RequestFailed, EngineDead)


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter. `place` is "path", "query" or "header"; path parameters are required.

    `values` lists the allowed values. The value of a path parameter may contain slashes if `has_slashes` is true.
    """

    name: str
    place: Literal["path", "query", "header"]
    description: str
    type: Literal["string", "integer"] = "string"
    values: tuple[str, ...] = ()
    has_slashes: bool = False


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error response: status, reason, types of its JSON body, and whether a `Retry-After` header is sent.

    `examples` has examples of the body.
    """

    status: int
    reason: str
    content: Types
    retry: bool = False
    examples: tuple[object, ...] = ()


class FrontEndError(msgspec.Struct):
    """An error from the router, in the format of DJL's front end."""

    code: int
    type: str
    message: str


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A route's answer, with the types of its request bodies and of its answers with status 200.

    `examples` has an example of an answer by content type, where its type alone does not tell what it is. Errors are of
    the classes `errors`, in the format of one of `dialects`. Without `answers`, the response has no body. With `task`,
    only servers with this task have the route.
    """

    answers: Contents = {}
    bodies: Contents = {}
    examples: Mapping[str, object] = {}
    dialects: tuple[Dialect, ...] = ()
    errors: Kinds = ()
    task: ServedTask | None = None


class Generation(Endpoint, frozen=True, kw_only=True):
    """Generates an answer to a JSON body. The first dialect parses it, unless it has one of the fields in `claims`."""

    errors: Kinds = GENERATING
    claims: Mapping[str, Dialect] = {}

    @property
    def dialect(self) -> Dialect:
        """The dialect that parses bodies without a field in `claims`."""
        return self.dialects[0]

    def of(self, payload: Payload) -> Dialect:
        """Return the dialect of a body. Raises `InvalidJson` or `InvalidBody`."""
        if not self.claims:
            return self.dialect
        return next((dialect for name, dialect in self.claims.items() if name in payload.fields), self.dialect)


def generation(dialect: Dialect, body: Any, answers: Contents, task: ServedTask | None = None) -> Generation:
    """Return the endpoint that answers JSON bodies of type `body`, on servers with `task` or on all."""
    return Generation(dialects=(dialect,), bodies={JSON: (body,)}, answers=answers, task=task)


class Document(Endpoint, frozen=True, kw_only=True):
    """Answers what `find(model, body)` returns, as JSON. The first of `dialects` renders the errors that it raises.

    `read` parses the body and returns it with the names of its ignored fields. Without `read` there is no body: `find`
    gets the path's parameters, a dict, instead.
    """

    find: Callable[[ServedModel, Any], object]
    read: Callable[[Payload], tuple[Any, tuple[str, ...]]] | None = None


class Action(Endpoint, frozen=True, kw_only=True):
    """Changes what is served, or describes it. The first of `dialects` renders the errors that `act` raises.

    `act` gets the model, the path's parameters, and the fields of the query and of a JSON body, which is optional.
    """

    act: Callable[[Any, Mapping[str, str], Mapping[str, Any]], Reply]


class Probe(Endpoint, frozen=True, kw_only=True):
    """Answers programs that poll. Requests have no id and are not logged. `reply(model)` never raises."""

    reply: Callable[[Any], Reply]


class Route(msgspec.Struct, frozen=True):
    """One method of a path, such as `/models/{model}`. Generated clients call it by its `name`, the operation id.

    `failures` are responses that do not come from the endpoint: errors, and answers with a status other than 200.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    name: str
    tag: str
    summary: str
    endpoint: Endpoint
    parameters: tuple[Parameter, ...] = ()
    failures: tuple[Failure, ...] = ()
