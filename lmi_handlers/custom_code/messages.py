"""The whole protocol between web workers, the pool and the processes that run a model's own code.

    web worker  -- Invoke, ChangeAdapter -->  pool  -- Batch, Pause, Resume, AbortBatch -->  process with model.py
    web worker  <-- Head, BodyChunk .., End --  pool  <-- Head, BodyChunk .., End --  process with model.py

Each message is a MessagePack array tagged with its name, framed as in `lmi_handlers.workers.channel`. A web worker opens
one connection per request, so closing it aborts the request, and a client that reads slowly slows its own request down
and nothing else. One more connection, opened with `Watch`, tells it whether requests are accepted.
"""

from __future__ import annotations

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import LMIError, error_of, told
from lmi_handlers.engine.messages import Loading

# From a web worker


class Invoke(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Call the function. `properties` are the request's headers, `parts` its content: (name, bytes) in order."""

    request_id: str
    properties: dict[str, str]
    parts: list[tuple[str, bytes]]


class ChangeAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Call the function for adapters, in each process. `Head` has its status, and a `BodyChunk` its reason for an error."""

    function: str
    name: str
    source: str = ""
    pinned: bool = False
    options: dict[str, str] = {}


class Watch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Send `Loading` and `Serving` on this connection, now and on every change."""


# From the pool to a process that runs the code. `CodeSettings` are its settings, on standard input.


class CodeSettings(msgspec.Struct, frozen=True):
    """Get the function and call it once, with these properties and no content.

    If that has not ended at the monotonic time `deadline`, the answer is a `LoadError` that says where it is.
    """

    code: CustomCode
    properties: dict[str, str]
    deadline: float


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer these requests with one call. They have the numbers `number`, `number + 1` and so on, each used only once.

    `dynamic` says that the function expects a batch, even of one. `adapter_function` is called in place of the function
    that answers requests, with a single invocation.
    """

    number: int
    invocations: list[Invoke]
    dynamic: bool
    adapter_function: str = ""


class AbortBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nobody waits for the answers to the batch `number` any more. They still end with `End`."""

    number: int


class Pause(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Send no more of the stream that answers the request `number`: its client reads slowly."""

    number: int


class Resume(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Go on with that stream. It may have ended."""

    number: int


NOT_LOADED = "not loaded within option.model_loading_timeout"
"""Says that `CodeSettings.deadline` has passed."""

# From a process that runs the code to the pool


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The code has been imported and called once. From now on, it answers up to `max_calls` batches at a time."""

    max_calls: int


class LoadError(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The code cannot be used. `traceback` has only the author's frames. `temporary` means that another try may help."""

    message: str
    traceback: str
    temporary: bool = False


# The answer to the request with the number `index`: from such a process to the pool, and on to the web worker


class Head(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Status and headers. `streams` says that the chunks are to be sent on one by one."""

    index: int
    code: int
    properties: dict[str, str]
    streams: bool


class BodyChunk(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Content of the answer."""

    index: int
    data: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer is complete, or has failed for the reason `error`. The next three fields are the error's, as `told` has them.

    `seconds` is how long the call took, divided by its requests, or None if there was none or it has not ended.
    """

    index: int
    error: str | None = None
    kind: str = "RequestFailed"
    code: str | None = None
    field: str | None = None
    seconds: float | None = None


def failure_of(end: End) -> LMIError | None:
    """Return the error with which a request has ended, if it has failed."""
    return None if end.error is None else error_of(end.kind, end.error, end.field, end.code)


def failed(number: int, error: LMIError) -> End:
    """Return the message that says why a request has failed."""
    kind, message, field, code = told(error)
    return End(number, message, kind, code, field)


# From the pool to a web worker


class Serving(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Requests are accepted from now on."""


FromWorker = Invoke | ChangeAdapter | Watch
ToWorker = Loading | Serving | Head | BodyChunk | End
FromPool = Batch | AbortBatch | Pause | Resume
FromCode = Loaded | LoadError | Head | BodyChunk | End
