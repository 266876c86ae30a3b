"""Sends a request to a server on this network."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from lmi_handlers.core.connection_limit import ended_after
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import redacted
from lmi_handlers.tools.client.answer import failure_cause
from lmi_handlers.tools.client.errors import CallRefused

if TYPE_CHECKING:
    from typing_extensions import Self

_PREFIX = "X-Amzn-SageMaker-"
_CONNECT_SECONDS = 10
_TIMEOUT_SECONDS = 600  # of silence; SageMaker's own limits are 60 s for an answer and 8 minutes for a stream
CHUNK = 1 << 16
"""Maximum number of bytes that are read at a time."""

_LONGEST_CAUSE = 4096


class Unreachable(CallRefused):
    """The server takes no connection."""


class ServerUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a server. `path` has no slash at its end."""

    secure: bool
    host: str
    port: int | None
    path: str
    query: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read the value of an option `--url`. Raises `ConfigError`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url {redacted(url)}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url must be an http or https URL, got {redacted(url)}")
        return cls(
            secure=parts.scheme == "https",
            host=parts.hostname,
            port=port,
            path=parts.path.rstrip("/"),
            query=parts.query,
        )

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection to the server that is not open yet. `timeout` is in seconds."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout)


class InvokeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request, with SageMaker's names: `parameters` has "TargetModel", "SessionId" and so on."""

    body: bytes
    content_type: str
    accept: str | None
    parameters: Mapping[str, str]


class StreamedResponse(msgspec.Struct, frozen=True):
    """The answer's content type, SageMaker's headers (such as a new session's id) and the parts of its body."""

    content_type: str
    headers: Mapping[str, str]
    parts: Iterable[bytes]


def authorization(api_key: str | None, own_header: str | None = None) -> dict[str, str]:
    """Return the header with a server's key, or nothing without one. Raises `ConfigError`, which does not show the key.

    `own_header` is the one in which an API's clients send the key, if it is not that of bearer tokens.
    """
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("the API key (API_KEY) must have printable ASCII characters only")
    return {"Authorization": f"Bearer {api_key}"} if own_header is None else {own_header: api_key}


@contextmanager
def invoke_url(
    url: str, invocation: InvokeRequest, api_key: str | None, *, route: str | None = None, method: str = "POST"
) -> Iterator[StreamedResponse]:
    """Ask a server as `open_url` does. Raises `CallRefused`, also for an answer that is not a 2xx, or `ConfigError`."""
    with open_url(url, invocation, api_key, route=route, method=method) as response:
        if not 200 <= response.status < 300:
            with _explained(url):
                cause = response.headers.get("Location") or failure_cause(response.read(_LONGEST_CAUSE))
            raise CallRefused(f"{response.status}: {cause or response.reason}", code=str(response.status))
        sagemakers = {name: value for name, value in response.getheaders() if name.lower().startswith(_PREFIX.lower())}
        yield StreamedResponse(response.headers.get("Content-Type", ""), sagemakers, parts_of(response, url))


@contextmanager
def open_url(
    url: str,
    invocation: InvokeRequest,
    api_key: str | None,
    *,
    route: str | None = None,
    method: str = "POST",
    limit: float | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Ask a server with the headers that SageMaker would send, and yield its answer of any status.

    The path is that of the URL, or `/invocations` if it has none. With `route`, that is added to the URL's path instead.
    Raises as `asked` does, and `ConfigError`.
    """
    server = ServerUrl.parse(url)
    headers = {f"{_PREFIX}{_header(name)}": value for name, value in invocation.parameters.items()} | {
        "Content-Type": invocation.content_type
    }
    if invocation.accept is not None:
        headers["Accept"] = invocation.accept
    headers |= authorization(api_key)
    path = server.path + route if route is not None else server.path or "/invocations"
    if server.query:
        path += f"?{server.query}"
    with asked(server, method, path, invocation.body, headers, target=url, limit=limit) as response:
        yield response


@contextmanager
def asked(
    server: ServerUrl,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    target: str,
    limit: float | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Send a request, and yield the answer. Redirections are not followed, so `headers` go to this server only.

    The whole answer must arrive within `limit` seconds. Without a limit, the server must not be silent for 10 minutes.
    Raises `Unreachable`, or `CallRefused`, which name the `target`.
    """
    silence = _TIMEOUT_SECONDS if limit is None else limit
    with _explained(target, Unreachable):
        connection = server.connection(min(silence, _CONNECT_SECONDS))
    with closing(connection):
        with _explained(target, Unreachable):
            connection.connect()
        # A limit ends the connection by itself: the timeout of the socket, if it were as long, would sometimes come first.
        connection.sock.settimeout(silence if limit is None else None)
        with _within(connection.sock, limit, target):
            with _explained(target):
                connection.request(method, path, body, dict(headers))
                response = connection.getresponse()
            with response:  # which has the connection if the server ends it after this answer
                yield response


@contextmanager
def _within(sock: socket.socket, limit: float | None, target: str) -> Iterator[None]:
    """End a connection after `limit` seconds. Raises `CallRefused` if that was so, also where reading found just an end."""
    if limit is None:
        yield
        return
    cause = None
    with ended_after(sock, limit) as expired:
        try:
            yield
        except CallRefused as error:
            if not expired.is_set():
                raise
            cause = error
    if expired.is_set():
        raise CallRefused(f"{redacted(target)}: the answer has no end after {limit:g} s") from cause


@contextmanager
def _explained(target: str, kind: type[CallRefused] = CallRefused) -> Iterator[None]:
    """Raise errors of the connection as `CallRefused`. A `ValueError` is a header that cannot be sent."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise kind(f"{redacted(target)}: {error or type(error).__name__}") from error


def parts_of(response: http.client.HTTPResponse, target: str) -> Iterator[bytes]:
    """Yield the body as it arrives. Raises `CallRefused` if the connection breaks, or ends before the body does."""
    while True:
        with _explained(target):
            part = response.read1(CHUNK)
        if not part:
            break
        yield part
    if response.length:  # http.client checks only chunked bodies
        raise CallRefused(
            f"{redacted(target)}: the connection ended {response.length} bytes before the end of the answer"
        )


def _header(name: str) -> str:
    """Return the end of a parameter's header: "TargetModel" is "Target-Model"."""
    words = "".join(f"-{character}" if character.isupper() else character for character in name)
    return words.lstrip("-").removesuffix("-Name")
