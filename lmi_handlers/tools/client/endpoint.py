"""Sends a request to an endpoint on AWS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.client.errors import AnswerFailed, CallRefused
from lmi_handlers.tools.client.server import CHUNK, InvokeRequest, StreamedResponse

if TYPE_CHECKING:
    from botocore.response import StreamingBody


@contextmanager
def invoke_endpoint(aws: Aws, endpoint: str, invocation: InvokeRequest, *, streams: bool) -> Iterator[StreamedResponse]:
    """Call an endpoint. With `streams`, whatever it answers arrives as it is written. Raises `CallRefused`."""
    parameters: dict[str, object] = {
        "EndpointName": endpoint,
        "ContentType": invocation.content_type,
        "Body": invocation.body,
        **invocation.parameters,
    }
    if invocation.accept is not None:
        parameters["Accept"] = invocation.accept
    operation = "invoke_endpoint_with_response_stream" if streams else "invoke_endpoint"
    response = aws(AwsCall("sagemaker-runtime", operation, parameters))
    headers = {name: response[name] for name in ("NewSessionId", "ClosedSessionId") if response.get(name)}
    with closing(response["Body"]) as body:
        parts = _events(body, endpoint) if streams else _body(body, endpoint)
        yield StreamedResponse(response.get("ContentType", ""), headers, parts)


def _body(body: StreamingBody, endpoint: str) -> Iterator[bytes]:
    """Yield the bytes of an answer. Raises `CallRefused` if the connection breaks."""
    from botocore.exceptions import BotoCoreError

    try:
        yield from iter(lambda: body.read(CHUNK), b"")
    except BotoCoreError as error:
        raise CallRefused(f"{endpoint}: {error}") from error


def _events(events: Iterable[Mapping[str, Mapping[str, bytes]]], endpoint: str) -> Iterator[bytes]:
    """Yield the bytes of an event stream. Raises `AnswerFailed` where SageMaker breaks it off, and `CallRefused`."""
    from botocore.eventstream import ParserError
    from botocore.exceptions import EventStreamError
    from urllib3.exceptions import HTTPError

    try:
        for event in events:
            yield event["PayloadPart"]["Bytes"]
    except EventStreamError as error:
        raise AnswerFailed(str(error)) from error
    except (HTTPError, ParserError) as error:
        raise CallRefused(f"{endpoint}: {error}") from error
