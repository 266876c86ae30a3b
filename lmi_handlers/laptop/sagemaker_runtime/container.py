"""The container as AWS sees it: `/invocations` or OpenAI's route of this very application, with headers and a time limit.

It is called as a WSGI application, on the client's own connection if there is one, so bytes are passed on as they are
generated and a disconnect is noticed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask, Response, current_app, g, request
from werkzeug.datastructures import Headers

from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.laptop.sagemaker_runtime.constraints import PREFIX
from lmi_handlers.laptop.sagemaker_runtime.errors import TIMED_OUT, ModelError
from lmi_handlers.laptop.sagemaker_runtime.faults import NO_FAULT, Fault, TimeLimitExceeded, WsgiApp
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.web.inner_request import SAGEMAKER_HEADERS, inner_environ

INVOKE_TIME_LIMIT = 60.0
STREAM_TIME_LIMIT = 480.0
"""AWS's time limits in seconds, for an answer and for a stream."""

INVOCATIONS = "/invocations"

_RENAMED = {"x-amzn-sagemaker-session-id": PREFIX + "New-Session-Id"}
_TCP_ESTABLISHED, _TCP_CLOSE = 1, 7  # in the first byte of Linux's struct tcp_info

logger = logging.getLogger(__name__)


class ContainerTimeLimit:
    """A time limit in seconds, from now."""

    def __init__(self, seconds: float) -> None:
        self._started = time.monotonic()
        self._seconds = seconds

    def extend(self, seconds: float) -> None:
        """Set another limit, from the same start."""
        self._seconds = seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._started >= self._seconds


class ContainerCall:
    """Passes a request to the container. The answer's head is available at once, its body as generated.

    The constructor raises `ModelError` if there is no answer or it is not a 2xx. `close` lets the container stop.
    """

    def __init__(
        self,
        container: WsgiApp,
        endpoint: str,
        environ: dict[str, Any],
        deadline: ContainerTimeLimit,
        source: str = "primary",
    ) -> None:
        self._endpoint = endpoint
        self._deadline = deadline
        self._source = source
        try:
            self._response = Response.from_app(container, environ)  # waits for the first chunk
        except TimeLimitExceeded as error:
            raise self._error(0, TIMED_OUT) from error
        except Exception as error:
            logger.exception("the container did not complete its response")
            raise self._error(500, None) from error
        self.headers = self._response.headers
        self.content_type = self.headers.get("Content-Type", "application/octet-stream")
        if deadline.is_over:
            self.close()
            raise self._error(0, TIMED_OUT)
        status = self._response.status_code
        if not 200 <= status < 300:
            raise self._error(status, self.read().decode(errors="replace"))

    def chunks(self) -> Iterator[bytes]:
        """Yield the body. Raises `TimeLimitExceeded`, or whatever the container raises."""
        for chunk in self._response.iter_encoded():
            if self._deadline.is_over:  # this chunk may only be the container's reaction to the timeout
                raise TimeLimitExceeded
            yield chunk
        if self._deadline.is_over:
            raise TimeLimitExceeded

    def read(self) -> bytes:
        """Return the whole body and close it. Raises `ModelError`."""
        try:
            return b"".join(self.chunks())
        except TimeLimitExceeded as error:
            raise self._error(0, TIMED_OUT) from error
        except Exception as error:
            logger.exception("the container did not complete its response")
            raise self._error(self._response.status_code, None) from error
        finally:
            self.close()

    def close(self) -> None:
        """Let the container stop: its answer is no longer read."""
        self._response.close()

    def _error(self, status: int, text: str | None) -> ModelError:
        return ModelError(self._endpoint, status, text, self._source)


def call_container(
    endpoint: str, deadline: ContainerTimeLimit, *, api: str | None, accept: str | None, path: str = INVOCATIONS
) -> ContainerCall:
    """Pass the request that Flask is handling to the container. Raises `ModelError`."""
    environ = container_environ(request.environ, api, accept, deadline, path)
    return ContainerCall(current_fault().around(_app().wsgi_app), endpoint, environ, deadline)


def current_fault() -> Fault:
    """Return the fault of the request that Flask is handling."""
    fault: Fault = g.get("lmi_fault", NO_FAULT)
    return fault


def _app() -> Flask:
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001  a proxy does not outlive the request
    return app


def container_environ(
    environ: Mapping[str, Any],
    api: str | None,
    accept: str | None,
    deadline: ContainerTimeLimit,
    path: str = INVOCATIONS,
) -> dict[str, Any]:
    """Derive the WSGI environment of the container's request from that of the client's.

    SageMaker passes on only Content-Type, Accept and its own headers. The body and the connection stay the client's.
    """
    derived = inner_environ(environ, path)
    derived.pop(SAGEMAKER_HEADERS + "ACCEPT", None)
    if accept is not None:
        derived["HTTP_ACCEPT"] = accept
    if api is not None:
        derived[SAGEMAKER_HEADERS + "FORWARDED_API"] = api
    if adapter := _adapter(derived.get(SAGEMAKER_HEADERS + "INFERENCE_COMPONENT")):
        derived[SAGEMAKER_HEADERS + "ADAPTER_IDENTIFIER"] = adapter
    derived["QUERY_STRING"] = ""
    if "gunicorn.socket" in derived:
        derived["gunicorn.socket"] = ContainerSocket(derived["gunicorn.socket"], deadline)
    return derived


def _adapter(component: str | None) -> str | None:
    """Return the name of the inference component if it is that of a loaded adapter: SageMaker has one for each."""
    model = current_app.extensions.get("lmi_model")
    if component is None or not isinstance(model, ServedModel):
        return None
    with contextlib.suppress(EngineNotReady):
        return component if component in model.facts.capabilities.adapters else None
    return None


class ContainerSocket:
    """The client's connection as the container sees it. It reports "closed" after the `deadline`."""

    def __init__(self, sock: Any, deadline: ContainerTimeLimit) -> None:
        self._sock = sock
        self._deadline = deadline

    def getsockopt(self, level: int, option: int, length: int) -> bytes:
        """Return the kernel's answer before the deadline, then "closed". Only used for TCP_INFO."""
        if self._deadline.is_over:
            return bytes([_TCP_CLOSE]).ljust(length, b"\0")
        value: bytes = self._sock.getsockopt(level, option, length)
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class NoClient:
    """Stands for a connection where nobody waits for the answer: in an asynchronous invocation."""

    family = socket.AF_INET

    def getsockopt(self, level: int, option: int, length: int) -> bytes:  # noqa: ARG002  a socket's signature
        """Report "connected"."""
        return bytes([_TCP_ESTABLISHED]).ljust(length, b"\0")

    def limit_writes(self, deadline: float) -> None:
        """Nothing is written."""


def answer_headers(client: Headers, container: Headers) -> dict[str, str]:
    """Return the headers that the client sees: the variant it asked for and the container's SageMaker headers.

    The session id header is renamed for the client.
    """
    variant = client.get(PREFIX + "Target-Variant", "AllTraffic")
    headers = {"x-amzn-RequestId": str(uuid.uuid4()), "x-Amzn-Invoked-Production-Variant": variant}
    for name, value in container.items():
        if name.lower().startswith(PREFIX.lower()):
            headers[_RENAMED.get(name.lower(), name)] = value
    return headers
