"""The targets of a replay: a server at a URL, or an endpoint on AWS."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from lmi_handlers.tools.client.answer import MAX_DOCUMENT, STREAMS, document, media_type, parsed
from lmi_handlers.tools.client.apis import said
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.comparison import CompleteAnswer
from lmi_handlers.tools.client.endpoint import invoke_endpoint
from lmi_handlers.tools.client.errors import AnswerFailed, CallRefused
from lmi_handlers.tools.client.server import InvokeRequest, ServerUrl, authorization, open_url, parts_of
from lmi_handlers.tools.replay.recordings import ROUTE, Recorded

_MAX_SECONDS = 1200.0
"""A stream that is kept open with comments, because its engine hangs, would never end. SageMaker's end after 8 minutes."""


class NoAnswer(Exception):
    """There is no complete answer. The text is the cause."""


class Timed(msgspec.Struct, frozen=True):
    """An answer, and the seconds until its first token and its end. `first` is None if it is no stream with a text."""

    reply: CompleteAnswer
    total: float
    first: float | None = None


class Target(ABC):
    """A server that requests are sent to. Thread-safe."""

    @abstractmethod
    def ask(self, recorded: Recorded) -> Timed:
        """Send a request. Of what was recorded, only the body and its type are sent. Raises `NoAnswer`."""


class UrlTarget(Target):
    """A server at a URL such as `http://127.0.0.1:8080`. Only with a recorded route other than SageMaker's is it asked there."""

    def __init__(self, url: str, api_key: str | None, accept: str | None) -> None:
        """Raises `ConfigError` for a wrong URL or key."""
        ServerUrl.parse(url)
        authorization(api_key)
        self._url = url
        self._base = url.rstrip("/").removesuffix(ROUTE)
        self._api_key = api_key
        self._accept = accept

    def ask(self, recorded: Recorded) -> Timed:
        started = time.perf_counter()
        request = _request(recorded, self._accept)
        url, route = (self._url, None) if recorded.route == ROUTE else (self._base, recorded.route)
        try:
            with open_url(url, request, self._api_key, route=route, limit=_MAX_SECONDS) as response:
                content_type = response.headers.get("Content-Type", "")
                return _read(response.status, content_type, parts_of(response, self._url), started)
        except CallRefused as error:
            raise NoAnswer(str(error)) from error


class EndpointTarget(Target):
    """A SageMaker endpoint. A recorded stream is asked for as a stream."""

    def __init__(self, aws: Aws, endpoint: str, accept: str | None) -> None:
        """Raises `CallRefused`."""
        aws.client("sagemaker-runtime")  # before there are threads: boto3 makes clients in one only
        self._aws = aws
        self._endpoint = endpoint
        self._accept = accept

    def ask(self, recorded: Recorded) -> Timed:
        if recorded.route != ROUTE:
            raise NoAnswer(f"endpoints have no route but {ROUTE}, and the request is for {recorded.route}")
        started = time.perf_counter()
        streams = recorded.answer is not None and media_type(recorded.answer.content_type) in STREAMS
        request = _request(recorded, self._accept)
        try:
            with invoke_endpoint(self._aws, self._endpoint, request, streams=streams) as answer:
                return _read(200, answer.content_type, answer.parts, started)
        except CallRefused as refused:
            if (reply := _model_error(refused)) is None:
                raise NoAnswer(str(refused)) from refused
            return Timed(reply, time.perf_counter() - started)
        except AnswerFailed as error:
            raise NoAnswer(str(error)) from error


def _request(recorded: Recorded, accept: str | None) -> InvokeRequest:
    return InvokeRequest(body=recorded.body, content_type=recorded.content_type, accept=accept, parameters={})


def _model_error(refused: CallRefused) -> CompleteAnswer | None:
    """Return the container's own answer, which AWS passes on in its error, without its content type."""
    response = getattr(refused.__cause__, "response", None)
    if not isinstance(response, dict) or not isinstance(response.get("OriginalStatusCode"), int):
        return None
    body = str(response.get("OriginalMessage", "")).encode(errors="surrogatepass")
    content_type = "text/plain" if parsed(body) is None else "application/json"
    return CompleteAnswer(response["OriginalStatusCode"], content_type, body)


def _read(status: int, content_type: str, parts: Iterable[bytes], started: float) -> Timed:
    body, first = bytearray(), None
    seen = 0
    streams = media_type(content_type) in STREAMS
    for part in parts:
        body += part
        if len(body) > MAX_DOCUMENT:
            raise NoAnswer(f"the answer is longer than {MAX_DOCUMENT} bytes")
        if streams and first is None:
            end = body.rfind(b"\n", len(body) - len(part)) + 1
            if any(_has_text(line) for line in bytes(body[seen:end]).split(b"\n")):
                first = time.perf_counter() - started
            seen = max(seen, end)
    return Timed(CompleteAnswer(status, content_type, bytes(body)), time.perf_counter() - started, first)


def _has_text(line: bytes) -> bool:
    if (data := document(line)) is None:
        return False
    try:
        record = said(parsed(data))
    except (AnswerFailed, RecursionError):
        return False
    return bool(record.text or record.reasoning or record.special)
