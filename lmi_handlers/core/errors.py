"""All errors that this package raises, as one tree.

    LMIError
    ├── ConfigError              the operator must fix an option or the model; the process does not start
    │   └── UnsupportedModel         the backend cannot serve the model; another one may
    │       └── ConversionRefused        converting the model again would fail in the same way
    ├── RequestError             this request fails; no other request is affected
    │   ├── InvalidRequest           the client must change its request
    │   │   ├── UnsupportedFeature       the backend in use does not support what was requested
    │   │   ├── PayloadTooLarge          the body has too many bytes, or too many values or lines
    │   │   ├── UnsupportedMediaType     the route does not accept the body's content type
    │   │   ├── MalformedRequest         the body is cut off, or its chunks are malformed
    │   │   ├── RequestTimeout           the body did not arrive in time
    │   │   ├── InvalidJson              the body is not JSON
    │   │   ├── InvalidBody              the body is JSON, but a field is missing or has the wrong type
    │   │   ├── ContextLengthExceeded    the prompt is too long for the model
    │   │   └── InvalidChat              the model's chat template cannot render the messages
    │   ├── TurnConflict             another turn of the session ended first
    │   ├── ModelNotFound            no model with that name is served here
    │   ├── AdapterNotFound          no adapter with that name is loaded
    │   ├── AdapterExists            another adapter with that name is loaded
    │   ├── ModelExists              a model with that name is loaded or being loaded
    │   ├── InsufficientMemory       the model needs more memory than is free
    │   │   └── NoRoomYet                others that are in use have it
    │   ├── QueueFull                the job queue is full, or too many large bodies are arriving
    │   ├── DeadlineExceeded         `predict_timeout` seconds have passed
    │   │   └── TextDeadline             the text had to end sooner, and there is none yet
    │   ├── RequestFailed            the engine could not continue this request
    │   └── ClientDisconnected       nobody is waiting for the answer any more
    └── EngineError              all requests of the engine fail
        ├── EngineNotReady           the engine is loading or restarting
        ├── LoadFailed               loading failed, but another try may succeed
        └── EngineDead               the engine died while it worked on the request

Each dialect has one table that maps these classes to HTTP statuses and bodies. The classes know nothing of HTTP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

MAX_MESSAGE = 2000
"""Characters of the message of an `InvalidRequest`."""


class LMIError(Exception):
    """Base class of all errors that this package raises on purpose. `str(error)` is one sentence, cause first."""

    code: str = "error"
    """The cause for machines: stable, unlike the sentence. docs/errors.md lists all. A cause may have one of its own."""

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code

    def without_frames(self) -> LMIError:
        """Drop the traceback and the causes, and return the error. For callers that keep the error.

        A traceback's frames hold the request's memory, and often the error itself. That is a reference cycle, which is
        freed late or never.
        """
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class ConfigError(LMIError):
    """The operator must fix an option or the model before anything can start."""

    code = "invalid_configuration"


class UnsupportedModel(ConfigError):
    """The backend cannot serve the model although its kind is one that it supports. Another backend may."""

    code = "unsupported_model"


class ConversionRefused(UnsupportedModel):
    """The backend cannot convert the model, and never will with the installed libraries."""

    code = "conversion_refused"


class RequestError(LMIError):
    """The request cannot be answered. No other request is affected."""

    code = "request_error"


class InvalidRequest(RequestError):
    """The request can never be answered as it is. `field` names the field at fault, if there is one.

    A long `message` is cut: msgspec and chat templates quote all of a wrong value, which may be a long text.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE - 3]}..."
        super().__init__(f"{field}: {message}" if field else message, code=code)
        self.message = message
        self.field = field

    def with_alias(self, alias: Callable[[str], str]) -> Self:
        """Return the error with the client's own name for its field."""
        return self if self.field is None else type(self)(self.message, field=alias(self.field), code=self.code)


@contextlib.contextmanager
def aliased(alias: Callable[[str], str]) -> Iterator[None]:
    """Give an `InvalidRequest` that the block raises the client's own name for its field."""
    try:
        yield
    except InvalidRequest as error:
        raise error.with_alias(alias) from None


class UnsupportedFeature(InvalidRequest):
    """The request is valid, but the backend in use does not support one of its fields."""

    code = "not_supported"


class PayloadTooLarge(InvalidRequest):
    """The request body has more bytes, JSON values or lines than an option allows."""

    code = "payload_too_large"


class UnsupportedMediaType(InvalidRequest):
    """The route does not accept the content type of the body."""

    code = "unsupported_media_type"


class MalformedRequest(InvalidRequest):
    """The request body is cut off, or its chunks are malformed."""

    code = "malformed_request"


class RequestTimeout(InvalidRequest):
    """The request body did not arrive in time."""

    code = "request_timeout"


class InvalidJson(InvalidRequest):
    """The body is not a single JSON value."""

    code = "invalid_json"


class InvalidBody(InvalidRequest):
    """The body is JSON, but a field is missing or has the wrong type.

    `given` is the field's value, perhaps cut, if only certain others are allowed.
    """

    code = "invalid_body"

    def __init__(self, message: str, *, field: str | None = None, given: str | None = None) -> None:
        super().__init__(message, field=field)
        self.given = given


class InvalidChat(InvalidRequest):
    """The model's chat template cannot render the messages, or there is no template."""

    code = "invalid_chat"


class ContextLengthExceeded(InvalidRequest):
    """The prompt is longer than the model or `option.max_input_tokens` allows."""

    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    """The path or query names a model that is not served here."""

    code = "model_not_found"


class AdapterNotFound(RequestError):
    """No adapter with that name is loaded."""

    code = "adapter_not_found"


class AdapterExists(RequestError):
    """An adapter with that name is loaded, from another source."""

    code = "adapter_exists"


class ModelExists(RequestError):
    """A model with that name is loaded, or being loaded."""

    code = "model_exists"


class InsufficientMemory(RequestError):
    """The model needs more memory than is free, or as many models are loaded as may be."""

    code = "insufficient_memory"


class NoRoomYet(InsufficientMemory):
    """There will be room for the model once another one that is in use has had no request for a while."""

    code = "no_room_yet"


class TurnConflict(RequestError):
    """Another turn of the session has ended while this one was answered."""

    code = "turn_conflict"


class QueueFull(RequestError):
    """The job queue is full, or too many large bodies are arriving. Retry after `retry_after` seconds."""

    code = "queue_full"

    retry_after = 1


class DeadlineExceeded(RequestError):
    """The request did not finish within `predict_timeout` seconds."""

    code = "deadline_exceeded"

    def __init__(
        self, message: str = "the request did not finish within predict_timeout", *, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)


class TextDeadline(DeadlineExceeded):
    """The time in which the text has to end has passed, as `option` says. It is an error only if there is no text yet."""

    code = "text_deadline_exceeded"

    def __init__(self, option: str) -> None:
        super().__init__(f"there was nothing to answer with when option.{option} had passed")
        self.option = option


class RequestFailed(RequestError):
    """The engine accepted the request, but failed while it worked on it. Other requests are not affected."""

    code = "request_failed"


class RefusedByCode(RequestError):
    """The model's own code has refused a change of its adapters, with the HTTP status `status`."""

    code = "refused_by_code"

    def __init__(self, message: str, status: int = 424) -> None:
        super().__init__(message)
        self.status = status


class ClientDisconnected(RequestError):
    """The client closed its connection before the answer was complete."""

    code = "client_disconnected"

    def __init__(self, message: str = "the client closed the connection") -> None:
        super().__init__(message)


class EngineError(LMIError):
    """The engine as a whole cannot serve requests."""

    code = "engine_error"


class EngineNotReady(EngineError):
    """The engine is starting, restarting, stalled or shutting down. Retry later."""

    code = "engine_not_ready"

    retry_after = 5


class LoadFailed(EngineError):
    """Loading failed for lack of memory, or with a device, file system or network error. Another try may succeed."""

    code = "load_failed"


class EngineDead(EngineError):
    """The engine died with requests in flight, or cannot continue."""

    code = "engine_dead"


def entry_of(error: LMIError, table: Mapping[type[LMIError], T], default: T) -> T:
    """Return the table's entry for the error's class or, if that has none, for its nearest base class."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), default)


def told(error: LMIError) -> tuple[str, str, str | None, str | None]:
    """Return the error as another process is told of it: class, message, field or None, and code if it is not the class's.

    A class of another distribution is told as its nearest base class in this module.
    """
    kind = next(kind for kind in type(error).__mro__ if issubclass(kind, LMIError) and kind.__module__ == __name__)
    code = None if error.code == kind.code else error.code
    if isinstance(error, InvalidRequest):
        return kind.__name__, error.message, error.field, code
    return kind.__name__, str(error), None, code


def error_of(name: str, message: str, field: str | None = None, code: str | None = None) -> LMIError:
    """Return the error that another process has told. An unknown name, which none of ours sends, is a `RequestFailed`."""
    kind = globals().get(name)
    if not (isinstance(kind, type) and issubclass(kind, LMIError)):
        return RequestFailed(message)
    error = kind(message, field=field) if issubclass(kind, InvalidRequest) else kind(message)
    if code is not None:
        error.code = code
    return error
