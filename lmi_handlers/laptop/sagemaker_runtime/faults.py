"""Faults that clients of an endpoint have to live with, each for the next requests. They come from a file.

The file is a JSON array, which another program may change at any time; each request takes the first fault that is meant
for its operation:

    [{"fault": "throttling", "times": 2}, {"fault": "stream_broken", "after_bytes": 100}]

Some faults are SageMaker's, which then does not ask the container. The others are the container's: a WSGI application
in its place, or around it.

Sources: the API reference of the SageMaker runtime, botocore's service model, and error messages quoted by users.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.laptop.sagemaker_runtime.errors import refusal

MAX_FILE = 1 << 16
"""Maximum bytes of the file."""

PATIENCE = 5.0
"""Seconds in which another program must have released the file's lock."""

_POLL = 0.01

WsgiApp: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Operation = Literal["InvokeEndpoint", "InvokeEndpointWithResponseStream", "InvokeEndpointAsync"]
Bytes = Annotated[int, msgspec.Meta(ge=0)]


class TimeLimitExceeded(Exception):
    """The container did not finish within its time limit."""


class ServiceFailure(Exception):
    """SageMaker itself failed while it passed on the container's stream."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="fault"):
    """A fault of the next `times` requests for an `operation`, or for any operation if none is given."""

    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    operation: Operation | None = None

    def admit(self) -> None:
        """Do what happens before the container is asked. Raises `ServiceError` if it is not."""

    def around(self, container: WsgiApp) -> WsgiApp:
        """Return the container with the fault."""
        return container


class _Refusal(Fault, frozen=True):
    """An error of SageMaker itself."""

    status: ClassVar[int]
    kind: ClassVar[str]
    message: ClassVar[str]

    def admit(self) -> None:
        raise refusal(self.status, self.kind, self.message)


class Throttling(_Refusal, frozen=True, tag="throttling"):
    """Too many requests. botocore repeats the request by itself."""

    status, kind, message = 400, "ThrottlingException", "Rate exceeded"


class ModelNotReady(_Refusal, frozen=True, tag="model_not_ready"):
    """A serverless endpoint or a multi-model endpoint still loads the model. botocore repeats the request."""

    status, kind = 429, "ModelNotReadyException"
    message = (
        "Either a serverless endpoint variant's resources are still being provisioned, or a multi-model endpoint is "
        "still downloading or loading the target model. Wait and try your request again."
    )


class NoCapacity(_Refusal, frozen=True, tag="no_capacity"):
    """The inference component was scaled to zero, and its first instance still starts."""

    status, kind = 400, "ValidationError"
    message = (
        "Inference Component has no capacity to process this request. ApplicationAutoScaling may be in-progress (if "
        "configured) or try to increase the capacity by invoking UpdateInferenceComponentRuntimeConfig API."
    )


class ServiceUnavailable(_Refusal, frozen=True, tag="service_unavailable"):
    """SageMaker cannot be asked now. botocore repeats the request."""

    status, kind, message = 503, "ServiceUnavailable", "The service is currently unavailable."


class InternalFailure(_Refusal, frozen=True, tag="internal_failure"):
    """SageMaker itself failed. botocore repeats the request."""

    status, kind, message = 500, "InternalFailure", "An internal failure occurred."


class Delay(Fault, frozen=True, tag="delay"):
    """The container is only asked after `seconds`, as after a cold start."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=900)]

    def admit(self) -> None:
        time.sleep(self.seconds)


class ContainerError(Fault, frozen=True, tag="model_error"):
    """The container answers with an error, which becomes a `ModelError`."""

    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    message: Annotated[str, msgspec.Meta(max_length=4096)] = '{"error":"CUDA out of memory","code":500}'

    def around(self, container: WsgiApp) -> WsgiApp:  # noqa: ARG002  its answer is this one
        def failing(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            phrase = HTTPStatus(self.status).phrase if self.status in _STATUSES else "Error"
            start_response(f"{self.status} {phrase}", [("Content-Type", "application/json")])
            return [self.message.encode()]

        return failing


class _Cut(Fault, frozen=True):
    """The container's answer breaks off after `after_bytes`, usually inside a record. A shorter one breaks off at its end."""

    after_bytes: Bytes = 100
    cause: ClassVar[type[Exception]]

    def around(self, container: WsgiApp) -> WsgiApp:
        def cut(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if not self.after_bytes:
                raise self.cause()
            return self._cut(container(environ, start_response))

        return cut

    def _cut(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        left = self.after_bytes
        with contextlib.ExitStack() as stack:
            if (close := getattr(chunks, "close", None)) is not None:
                stack.callback(close)  # lets the container stop
            for chunk in chunks:
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    break
            raise self.cause()


class TimeLimit(_Cut, frozen=True, tag="time_limit"):
    """SageMaker's time limit is over: 60 seconds for an answer, 8 minutes for a stream. Nobody has to wait for it."""

    after_bytes: Bytes = 0
    cause = TimeLimitExceeded


class StreamBroken(_Cut, frozen=True, tag="stream_broken"):
    """The container closes the connection within its answer."""

    cause = ConnectionResetError


class InternalStreamFailure(_Cut, frozen=True, tag="internal_stream_failure"):
    """SageMaker itself fails within a stream."""

    cause = ServiceFailure


AnyFault = (
    Throttling
    | ModelNotReady
    | NoCapacity
    | ServiceUnavailable
    | InternalFailure
    | Delay
    | ContainerError
    | TimeLimit
    | StreamBroken
    | InternalStreamFailure
)
NO_FAULT = Fault()

_STATUSES = {status.value for status in HTTPStatus}
_DECODER = msgspec.json.Decoder(list[AnyFault])


class FaultsFile:
    """The file with the faults, for all web workers and for the program that changes it.

    Each waits for the file's lock for `patience` seconds. A web worker goes on with its other requests meanwhile.
    """

    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        self._path = path
        self._patience = patience

    def check(self) -> None:
        """Raise `ConfigError` if the file cannot be read."""
        with self._locked() as file:
            self._read(file)

    def add(self, *faults: Fault) -> None:
        """Add faults for the next requests. Creates the file if it is missing. Raises `ConfigError`."""
        with self._locked(os.O_CREAT) as file:
            self._write(file, [*self._read(file), *faults])

    def left(self) -> list[AnyFault]:
        """Return the faults that no request has taken yet. Raises `ConfigError`."""
        with self._locked() as file:
            return self._read(file)

    def clear(self) -> None:
        """Take all faults back. Raises `ConfigError`."""
        with self._locked() as file:
            self._write(file, [])

    def take(self, operation: str) -> Fault:
        """Return the first fault for a request of this operation, or `NO_FAULT`. Raises `ConfigError`."""
        with self._locked() as file:
            faults = self._read(file)
            for position, fault in enumerate(faults):
                if fault.operation in (None, operation):
                    rest = [msgspec.structs.replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                    self._write(file, [*faults[:position], *rest, *faults[position + 1 :]])
                    return fault
        return NO_FAULT

    @contextlib.contextmanager
    def _locked(self, flags: int = 0) -> Iterator[IO[bytes]]:
        try:
            with os.fdopen(os.open(self._path, os.O_RDWR | flags, 0o666), "r+b") as file:
                self._lock(file)
                yield file
        except OSError as error:
            raise ConfigError(f"faults {self._path}: {error.strerror or error}") from error

    def _lock(self, file: IO[bytes]) -> None:
        """Lock the file. Raises `TimeoutError`."""
        deadline = time.monotonic() + self._patience
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another program keeps it locked for more than {self._patience:g} seconds")
            time.sleep(_POLL)

    def _read(self, file: IO[bytes]) -> list[AnyFault]:
        data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ConfigError(f"faults {self._path}: a file with faults has at most {MAX_FILE} bytes")
        if not data.strip():
            return []
        try:
            return _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"faults {self._path}: {error}") from error

    def _write(self, file: IO[bytes], faults: list[Any]) -> None:
        data = msgspec.json.encode(faults)
        file.seek(0)
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
