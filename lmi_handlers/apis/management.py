"""What the management routes of DJL's front end have in common: the format of errors, and how parameters are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from lmi_handlers.apis.base import Dialect, Payload, Reply, front_end_json
from lmi_handlers.apis.routes import FrontEndError
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


def read_fields(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return the fields as a struct. Those of a query are text. Raises `InvalidBody`."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidBody(str(error)) from error
