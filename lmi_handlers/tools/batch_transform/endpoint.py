"""The server that a job calls, over HTTP, with SageMaker's retries.

It uses the standard library's client: a connection per thread is all that it needs.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Mapping

import msgspec

from lmi_handlers.core.errors import ConfigError, LMIError
from lmi_handlers.tools.batch_transform.settings import ExecutionParameters
from lmi_handlers.tools.client.server import ServerUrl, authorization

_PING_SECONDS = 5.0
_LOADING_SECONDS = 3600.0
_POLL_SECONDS = 0.5
_MAX_CAUSE = 1000
"""Characters of an answer that is quoted as the cause of a failure."""
_LONGEST_PAUSE = 30.0

BUSY = (0, 429, 502, 503, 504)
"""Statuses that say nothing about the request: the server is overloaded, loads, or does not answer."""


class ServerLost(LMIError):
    """The server is gone or does not answer, so no other request can succeed either."""


class HttpResponse(msgspec.Struct, frozen=True):
    """An answer. `status` is 0 if there was none."""

    status: int
    body: bytes
    content_type: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def cause(self) -> str:
        """The cause if it is not `ok`."""
        reason = http.HTTPStatus(self.status).phrase if self.status in set(http.HTTPStatus) else "no answer"
        return self.body.decode(errors="replace")[:_MAX_CAUSE].strip() or reason


class ServerClient:
    """A server at a URL such as `http://127.0.0.1:8080`. Thread-safe.

    `timeout` is the number of seconds without a byte of an answer after which it is given up. A request that fails with
    5xx or 429, or without an answer, is repeated up to `max_retries` times.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout: float = 600, max_retries: int = 3) -> None:
        """Raises `ConfigError` if the URL or the key is not valid."""
        self.url = url
        self._server = ServerUrl.parse(url)
        self._base = self._server.path.removesuffix("/invocations")
        self._timeout = timeout
        self._max_retries = max_retries
        self._threads = threading.local()
        self._headers = authorization(api_key)

    def invoke(self, body: bytes, content_type: str, accept: str | None) -> HttpResponse:
        """Send a body to `/invocations`. Raises `ServerLost`."""
        headers = {"Content-Type": content_type, **({"Accept": accept} if accept else {})}
        return self._repeated("POST", "/invocations", body, headers)

    def wait_until_loaded(self, seconds: float = _LOADING_SECONDS) -> None:
        """Wait while `/ping` is answered with 503, for at most `seconds`. Raises `ServerLost`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer, _ = self._try("GET", "/ping", None, {}, 0, timeout=_PING_SECONDS)
            if answer.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                return
            time.sleep(_POLL_SECONDS)

    def execution_parameters(self) -> ExecutionParameters:
        """Return what the server says about itself, or SageMaker's defaults if it does not say.

        Raises `ConfigError` or `ServerLost`.
        """
        answer = self._repeated("GET", "/execution-parameters", None, {})
        if answer.status in BUSY or answer.status >= 500:
            raise ServerLost(f"{self.url}/execution-parameters: {answer.cause}")
        try:
            return msgspec.json.decode(answer.body, type=ExecutionParameters) if answer.ok else ExecutionParameters()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{self.url}/execution-parameters is not as SageMaker expects it: {error}") from None

    def _repeated(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HttpResponse:
        for attempt in range(self._max_retries + 1):
            answer, pause = self._try(method, path, body, headers, 2**attempt)
            if answer.status not in BUSY and answer.status < 500:
                break
            if attempt < self._max_retries:
                time.sleep(pause)
                if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:  # its engine may be starting again
                    self.wait_until_loaded(self._timeout)
        return answer

    def _try(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        pause: float,
        timeout: float | None = None,
    ) -> tuple[HttpResponse, float]:
        """Return an answer, and the seconds to wait before the request is repeated."""
        connection = self._connection(timeout or self._timeout)
        try:
            connection.request(method, self._base + path, body, {**self._headers, **headers})
            response = connection.getresponse()
            answer = HttpResponse(
                response.status, response.read(), response.getheader("Content-Type", "").partition(";")[0]
            )
            retry_after = response.getheader("Retry-After", "")
        except (ConnectionRefusedError, socket.gaierror) as error:
            connection.close()
            raise ServerLost(f"{self.url}: {error.strerror}") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()  # it opens again with the next request
            cause = (
                f"no byte of an answer within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            return HttpResponse(0, f"{type(error).__name__}: {cause}".encode()), pause
        if response.will_close:
            connection.close()
        return answer, min(float(retry_after) if retry_after.isdecimal() else pause, _LONGEST_PAUSE)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        """Return this thread's connection."""
        connection: http.client.HTTPConnection | None = getattr(self._threads, "connection", None)
        if connection is None or connection.timeout != timeout:
            connection = self._server.connection(timeout)
            self._threads.connection = connection
        return connection
