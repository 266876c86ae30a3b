"""Shared by the management routes of DJL's front end: errors, parameters, paging, and documents as it writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from lmi_handlers.apis.base import Dialect, Payload, Reply, front_end_json
from lmi_handlers.apis.routes import JSON, READING, Action, Contents, FrontEndError, Parameter
from lmi_handlers.core.errors import (
    AdapterExists,
    AdapterNotFound,
    ConfigError,
    DeadlineExceeded,
    EngineError,
    InsufficientMemory,
    InvalidBody,
    InvalidRequest,
    LMIError,
    LoadFailed,
    ModelExists,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    RefusedByCode,
    RequestTimeout,
    UnsupportedMediaType,
    entry_of,
)
from lmi_handlers.serving.parsed import Parsed

T = TypeVar("T")

Path = Mapping[str, str]
Fields = Mapping[str, Any]
Act = Callable[[Any, Path, Fields], Reply]

PAGE = 100
"""The default number of entries per page."""

_STATUSES: Mapping[type[LMIError], tuple[int, str]] = {
    ModelNotFound: (404, "ModelNotFoundException"),
    ModelExists: (409, "BadRequestException"),
    InsufficientMemory: (507, "WlmOutOfMemoryException"),
    AdapterNotFound: (404, "ResourceNotFoundException"),
    AdapterExists: (409, "ConflictException"),
    ConfigError: (400, "BadRequestException"),
    InvalidRequest: (400, "BadRequestException"),
    PayloadTooLarge: (413, "BadRequestException"),
    UnsupportedMediaType: (415, "BadRequestException"),
    RequestTimeout: (408, "BadRequestException"),
    QueueFull: (503, "ServiceUnavailableException"),
    EngineError: (503, "ServiceUnavailableException"),
    LoadFailed: (500, "InternalServerException"),
    DeadlineExceeded: (504, "ServiceUnavailableException"),
    RefusedByCode: (424, "BadRequestException"),
}
"""HTTP status and DJL's name by error class or nearest base class. Defaults to 500."""
_OTHER = (500, "InternalServerException")


def status_of(error: LMIError) -> int:
    """Return the HTTP status of an error."""
    return entry_of(error, _STATUSES, _OTHER)[0]


class ManagementDialect(Dialect):
    """Renders errors like DJL's front end. These routes have no bodies that ask for text."""

    error_type: ClassVar[type] = FrontEndError

    def parse(self, payload: Payload) -> Parsed:
        """Never called."""
        raise NotImplementedError

    def error(self, error: LMIError) -> Reply:
        """Render `{"code":404,"type":"ResourceNotFoundException","message":"<cause>"}`, indented."""
        status, kind = entry_of(error, _STATUSES, _OTHER)
        status = error.status if isinstance(error, RefusedByCode) else status
        return Reply(status, front_end_json({"code": status, "type": kind, "message": str(error)}))


class Paging(msgspec.Struct):
    """Query parameters that choose a page."""

    limit: int = PAGE
    next_page_token: Annotated[int, msgspec.Meta(ge=0)] = 0

    def of(self, entries: Sequence[T]) -> tuple[list[T], str | None]:
        """Return the page, and the token of the next one if there is one."""
        stop = self.next_page_token + self.limit
        return list(entries[self.next_page_token : stop]), str(stop) if stop < len(entries) else None


def paging(entries: str) -> tuple[Parameter, Parameter]:
    """Describe the query parameters of a list of `entries`."""
    return (
        Parameter(name="limit", place="query", type="integer", description=f"Maximum number of {entries} per page."),
        Parameter(
            name="next_page_token", place="query", type="integer", description="`nextPageToken` of the last page."
        ),
    )


def action(
    act: Act,
    answers: Contents,
    body: type | None = None,
    *errors: type[LMIError],
    dialect: Dialect | None = None,
    examples: Mapping[str, object] = {},
) -> Action:
    """Return a management action. `errors` are those that it may raise beside the errors of all of them."""
    return Action(
        act=act,
        dialects=(dialect or ManagementDialect(),),
        answers=answers,
        bodies={} if body is None else {JSON: (body,)},
        examples=examples,
        errors=(*READING, ModelNotFound, *errors),
    )


def document(value: object, status: int = 200) -> Reply:
    """Answer with a document as DJL's front end writes it."""
    return Reply(status, front_end_json(msgspec.to_builtins(value)))


def read_fields(fields: Fields, kind: type[T]) -> T:
    """Return the fields as a struct. Those of a query are text. Raises `InvalidBody`."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidBody(str(error)) from error
