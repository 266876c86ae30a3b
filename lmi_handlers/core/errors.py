"""Everything that can go wrong, as one tree.

    LMIError
    ├── ConfigError              an option or model the operator must mend; the process does not start
    ├── RequestError             this request dies, every other one lives
    │   ├── InvalidRequest           the client must change its request
    │   │   ├── UnsupportedFeature       the backend in use cannot do what was asked
    │   │   ├── PayloadTooLarge          the body is too large, in bytes or in what it holds
    │   │   ├── UnsupportedMediaType     the body's content type is none that this route takes
    │   │   ├── MalformedRequest         the body is cut off, or its chunks are malformed
    │   │   ├── RequestTimeout           the body did not arrive in time
    │   │   ├── InvalidJson              the body is not JSON
    │   │   ├── InvalidBody              the body's JSON has not the types of a request
    │   │   ├── ContextLengthExceeded    the prompt is longer than the model takes
    │   │   └── InvalidChat              the model's chat template cannot render the messages
    │   ├── ModelNotFound            no model of that name is served here
    │   ├── QueueFull                `job_queue_size` requests wait already, or too many large bodies are on their way
    │   ├── DeadlineExceeded         `predict_timeout` seconds have passed
    │   ├── RequestFailed            the engine could not go on with this request
    │   └── ClientDisconnected       nobody is left to answer
    └── EngineError              every request of the engine dies
        ├── EngineNotReady           it is still loading, or restarting
        ├── LoadFailed               it did not load, but may when it is tried again
        └── EngineDead               it ended while it worked on the request

Each dialect maps these classes to its own HTTP status and body in one table; the classes themselves know no HTTP.
"""

from __future__ import annotations


class LMIError(Exception):
    """Base of every error that this package raises on purpose. `str(error)` is one sentence, the cause first."""

    def without_frames(self) -> LMIError:
        """Drop the traceback and the causes, and return the error: for whoever keeps it.

        Their frames hold what the request has in memory, and often the error itself: a cycle, which is collected late if ever.
        """
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class ConfigError(LMIError):
    """An option or a model that the operator must mend before anything can start."""


class RequestError(LMIError):
    """The request at hand cannot be answered; no other request notices."""


class InvalidRequest(RequestError):
    """The client sent something that can never be answered as it stands; `field` names the culprit where there is one."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field


class UnsupportedFeature(InvalidRequest):
    """A field is fine in itself, but the backend in use cannot honour it."""


class PayloadTooLarge(InvalidRequest):
    """The request body has more bytes, JSON values or lines than an option allows."""


class UnsupportedMediaType(InvalidRequest):
    """The body's content type is none that this route takes."""


class MalformedRequest(InvalidRequest):
    """The request body is cut off, or its chunks are malformed."""


class RequestTimeout(InvalidRequest):
    """The request body did not arrive in time."""


class InvalidJson(InvalidRequest):
    """The body is not one JSON value."""


class InvalidBody(InvalidRequest):
    """The body is JSON, but a field of it is missing or has a wrong type."""


class InvalidChat(InvalidRequest):
    """The model's chat template cannot render the messages, or there is no template."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt is longer than the model, or the operator, takes."""


class ModelNotFound(RequestError):
    """The path or query names a model that is not served here."""


class QueueFull(RequestError):
    """`job_queue_size` requests are waiting, or too many large bodies are arriving. Try again after `retry_after` seconds."""

    retry_after = 1


class DeadlineExceeded(RequestError):
    """The request was not done `predict_timeout` seconds after it came in."""


class RequestFailed(RequestError):
    """The engine accepted the request and then failed it alone."""


class ClientDisconnected(RequestError):
    """The client closed its connection before the answer was complete."""


class EngineError(LMIError):
    """The engine as a whole cannot serve."""


class EngineNotReady(EngineError):
    """The engine is starting, restarting or draining; trying again later makes sense."""

    retry_after = 5


class LoadFailed(EngineError):
    """The engine did not load for want of memory, of its device or of a file system; the next try may find them."""


class EngineDead(EngineError):
    """The engine ended with requests in flight, or cannot go on."""
