"""Sends one request to a server on this network or to an endpoint on AWS, and prints the answer as it arrives."""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from lmi_handlers.core import terminal
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.deploy.answer_text import AnswerFailed, failure_cause, texts
from lmi_handlers.tools.deploy.aws import Aws, Refused
from lmi_handlers.tools.deploy.calls import Call

if TYPE_CHECKING:
    from botocore.response import StreamingBody

_PREFIX = "X-Amzn-SageMaker-"
_CONNECT_SECONDS = 10
_TIMEOUT_SECONDS = 600  # of silence; SageMaker's own limits are 60 s for an answer and 8 minutes for a stream
_CHUNK = 1 << 16
_LONGEST_CAUSE = 4096


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """A request, with SageMaker's names: `parameters` has "TargetModel", "SessionId" and so on."""

    body: bytes
    content_type: str
    accept: str | None
    parameters: Mapping[str, str]


class Answer(msgspec.Struct, frozen=True):
    """The answer's content type, SageMaker's headers (such as a new session's id) and the parts of its body."""

    content_type: str
    headers: Mapping[str, str]
    parts: Iterable[bytes]


def show(answer: Answer, *, raw: bool) -> None:
    """Print the generated text, or with `raw` the bytes. SageMaker's headers go to standard error. Raises `AnswerFailed`."""
    for name, value in answer.headers.items():
        terminal.show_error(f"{name}: {value}")
    if raw:
        writer = terminal.ByteWriter()
        for part in answer.parts:
            writer.write(part)
        return
    last = ""
    try:
        for text in texts(answer.parts, answer.content_type):
            terminal.show(text, end="")
            last = text or last
    finally:
        if last and not last.endswith("\n"):
            terminal.show()


@contextmanager
def invoke_url(
    url: str, invocation: Invocation, api_key: str | None, *, route: str | None = None, method: str = "POST"
) -> Iterator[Answer]:
    """Ask a server with the headers that SageMaker would send. Raises `Refused` or `ConfigError`.

    The path is that of the URL, or `/invocations` if it has none. With `route`, that is added to the URL's path instead.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url {url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url must be an http or https URL, got {url}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {f"{_PREFIX}{_header(name)}": value for name, value in invocation.parameters.items()} | {
        "Content-Type": invocation.content_type
    }
    if invocation.accept is not None:
        headers["Accept"] = invocation.accept
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    base = parts.path.rstrip("/")
    path = base + route if route is not None else base or "/invocations"
    if parts.query:
        path += f"?{parts.query}"
    with _explained(url):
        connection = kind(parts.hostname, port, timeout=_CONNECT_SECONDS)
    with closing(connection):
        with _explained(url):
            connection.connect()
            connection.sock.settimeout(_TIMEOUT_SECONDS)
            connection.request(method, path, invocation.body, headers)
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                cause = response.headers.get("Location") or failure_cause(response.read(_LONGEST_CAUSE))
                raise Refused(f"{response.status}: {cause or response.reason}", code=str(response.status))
        sagemakers = {name: value for name, value in response.getheaders() if name.lower().startswith(_PREFIX.lower())}
        yield Answer(response.headers.get("Content-Type", ""), sagemakers, _parts(response, url))


@contextmanager
def _explained(target: str) -> Iterator[None]:
    """Raise errors of the connection as `Refused`. A `ValueError` is a header that cannot be sent."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Refused(f"{target}: {error or type(error).__name__}") from error


def _parts(response: http.client.HTTPResponse, target: str) -> Iterator[bytes]:
    """Yield the body as it arrives. Raises `Refused` if the connection breaks, or ends before the body does."""
    while True:
        with _explained(target):
            part = response.read1(_CHUNK)
        if not part:
            break
        yield part
    if response.length:  # http.client checks only chunked bodies
        raise Refused(f"{target}: the connection ended {response.length} bytes before the end of the answer")


def _header(name: str) -> str:
    """Return the end of a parameter's header: "TargetModel" is "Target-Model"."""
    words = "".join(f"-{character}" if character.isupper() else character for character in name)
    return words.lstrip("-").removesuffix("-Name")


@contextmanager
def invoke_endpoint(aws: Aws, endpoint: str, invocation: Invocation, *, streams: bool) -> Iterator[Answer]:
    """Call an endpoint. With `streams`, whatever it answers arrives as it is written. Raises `Refused`."""
    parameters: dict[str, object] = {
        "EndpointName": endpoint,
        "ContentType": invocation.content_type,
        "Body": invocation.body,
        **invocation.parameters,
    }
    if invocation.accept is not None:
        parameters["Accept"] = invocation.accept
    operation = "invoke_endpoint_with_response_stream" if streams else "invoke_endpoint"
    response = aws(Call("sagemaker-runtime", operation, parameters))
    headers = {name: response[name] for name in ("NewSessionId", "ClosedSessionId") if response.get(name)}
    with closing(response["Body"]) as body:
        parts = _events(body, endpoint) if streams else _body(body, endpoint)
        yield Answer(response.get("ContentType", ""), headers, parts)


def _body(body: StreamingBody, endpoint: str) -> Iterator[bytes]:
    """Yield the bytes of an answer. Raises `Refused` if the connection breaks."""
    from botocore.exceptions import BotoCoreError

    try:
        yield from iter(lambda: body.read(_CHUNK), b"")
    except BotoCoreError as error:
        raise Refused(f"{endpoint}: {error}") from error


def _events(events: Iterable[Mapping[str, Mapping[str, bytes]]], endpoint: str) -> Iterator[bytes]:
    """Yield the bytes of an event stream. Raises `AnswerFailed` where SageMaker breaks it off, and `Refused`."""
    from botocore.eventstream import ParserError
    from botocore.exceptions import EventStreamError
    from urllib3.exceptions import HTTPError

    try:
        for event in events:
            yield event["PayloadPart"]["Bytes"]
    except EventStreamError as error:
        raise AnswerFailed(str(error)) from error
    except (HTTPError, ParserError) as error:
        raise Refused(f"{endpoint}: {error}") from error
