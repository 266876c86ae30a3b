"""SageMaker's runtime API on the container's own port, so that an unmodified boto3 client works against a laptop.

    boto3 -> POST /endpoints/<any name>/invocations                    -> /invocations of this app -> its answer
    boto3 -> POST /endpoints/<any name>/invocations-response-stream    -> /invocations of this app -> an event stream

This module does what AWS does between client and container: it maps headers both ways, turns the container's errors
into 424 `ModelError`, and limits its time. The container is called as a WSGI application on the client's own
connection, so bytes are passed on as they are generated and a disconnect is noticed. Signatures are not checked and
sizes are not limited. With an API key, the client's access key id must be that key; `access_control` checks it before
the container is called.

Sources: the API reference of the SageMaker runtime, botocore's service model, and error messages quoted by users.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from flask import Blueprint, Response, current_app, request
from werkzeug.datastructures import Headers

from lmi_handlers.sagemaker_runtime import eventstream
from lmi_handlers.web.access_control import ADMITTED

INVOKE_TIME_LIMIT = 60.0
STREAM_TIME_LIMIT = 480.0
"""AWS's time limits in seconds, for an answer and for a stream."""

MESSAGE_LIMIT = 2048
"""Maximum characters of `Message` and `OriginalMessage` in a `ModelError`."""

PART_SIZE = 65536
"""Maximum bytes per `PayloadPart`. AWS documents no number, only that a part may end anywhere."""

REGION = "us-east-1"
ACCOUNT = "000000000000"
"""Used for the log group that errors mention. It does not exist: the log goes to the server's standard error."""

_PREFIX = "X-Amzn-SageMaker-"
_ENVIRON_PREFIX = "HTTP_X_AMZN_SAGEMAKER_"
_TRANSPORT = ("HTTP_HOST", "HTTP_TRANSFER_ENCODING")
_RENAMED = {"x-amzn-sagemaker-session-id": _PREFIX + "New-Session-Id"}
_TCP_CLOSE = 7  # in the first byte of Linux's struct tcp_info

_TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the latency metrics for "
    "each container in Amazon CloudWatch, resolve the issue, and try again."
)

logger = logging.getLogger(__name__)


def local_runtime(
    *,
    split_payload_parts: bool,
    invoke_time_limit: float = INVOKE_TIME_LIMIT,
    stream_time_limit: float = STREAM_TIME_LIMIT,
) -> Blueprint:
    """Build the routes. `split_payload_parts` cuts streams at awkward places; the limits are in seconds."""
    runtime = LocalRuntime(split_payload_parts, invoke_time_limit, stream_time_limit)
    blueprint = Blueprint("local_runtime", __name__)
    for path, view in (
        ("/endpoints/<endpoint>/invocations", runtime.invoke_endpoint),
        ("/endpoints/<endpoint>/invocations-response-stream", runtime.invoke_endpoint_with_response_stream),
    ):
        blueprint.add_url_rule(path, view.__name__, view, methods=["POST"])
    blueprint.register_error_handler(ServiceError, ServiceError.response)
    return blueprint


class ServiceError(Exception):
    """An error of the runtime API itself. `kind` names botocore's exception; `fields` is the JSON body."""

    def __init__(self, status: int, kind: str, fields: Mapping[str, object]) -> None:
        super().__init__(str(fields["Message"]))
        self.status = status
        self.kind = kind
        self.fields = fields

    def response(self) -> Response:
        """Render the error. Clients choose their exception by the `x-amzn-ErrorType` header."""
        headers = {"x-amzn-RequestId": str(uuid.uuid4()), "x-amzn-ErrorType": self.kind}
        return Response(json.dumps(self.fields), self.status, headers, content_type="application/json")


class ModelError(ServiceError):
    """The container's failure, in AWS's wording. `text` is the container's body, or None if it could not be read."""

    def __init__(self, endpoint: str, status: int, text: str | None) -> None:
        log_group = f"/aws/sagemaker/Endpoints/{endpoint[:63]}"
        side = "client" if 400 <= status < 500 else "server"
        head = f"Received {side} error ({status}) from primary"
        tail = (
            f". See https://{REGION}.console.aws.amazon.com/cloudwatch/home?region={REGION}"
            f"#logEventViewer:group={log_group} in account {ACCOUNT} for more information."
        )
        if text is None:
            cause = " and could not load the entire response body"
        else:
            room = MESSAGE_LIMIT - len(f'{head} with message ""{tail}')
            cause = f' with message "{text[:room]}"'
        fields = {
            "Message": head + cause + tail,
            "OriginalStatusCode": status,
            "OriginalMessage": (text or "")[:MESSAGE_LIMIT],
            "LogStreamArn": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{log_group}",
        }
        super().__init__(424, "ModelError", fields)


class LocalRuntime:
    """The two operations of the runtime API."""

    def __init__(self, split_payload_parts: bool, invoke_time_limit: float, stream_time_limit: float) -> None:
        self._split_payload_parts = split_payload_parts
        self._invoke_time_limit = invoke_time_limit
        self._stream_time_limit = stream_time_limit

    def invoke_endpoint(self, endpoint: str) -> Response:
        """`InvokeEndpoint`: the container's complete answer."""
        check_headers(request.headers, _CONSTRAINTS)
        call = ContainerCall(endpoint, "InvokeEndpoint", request.headers.get("Accept"), self._invoke_time_limit)
        response = Response(call.read(), content_type=call.content_type)
        response.headers.extend(_answer_headers(request.headers, call.headers))
        return response

    def invoke_endpoint_with_response_stream(self, endpoint: str) -> Response:
        """`InvokeEndpointWithResponseStream`: the container's answer as an event stream, sent as it is generated."""
        check_headers(request.headers, _STREAM_CONSTRAINTS)
        accept = request.headers.get(_PREFIX + "Accept")
        call = ContainerCall(endpoint, "InvokeEndpointWithResponseStream", accept, self._stream_time_limit)
        response = Response(self._events(call), content_type=eventstream.CONTENT_TYPE)
        response.call_on_close(call.close)
        response.headers.extend(_answer_headers(request.headers, call.headers))
        response.headers[_PREFIX + "Content-Type"] = call.content_type
        return response

    def _events(self, call: ContainerCall) -> Iterator[bytes]:
        chunks = call.chunks()
        try:
            for chunk in eventstream.split_parts(chunks) if self._split_payload_parts else chunks:
                for start in range(0, len(chunk), PART_SIZE):
                    yield eventstream.payload_part(chunk[start : start + PART_SIZE])
        except TimeLimitExceeded:
            yield eventstream.model_stream_error("ModelInvocationTimeExceeded", _TIMED_OUT)
        except Exception:
            logger.exception("the container did not complete its stream")
            message = "The connection to container primary was closed before its response was complete."
            yield eventstream.model_stream_error("StreamBroken", message)


class TimeLimitExceeded(Exception):
    """The container did not finish within its time limit."""


class ContainerCall:
    """Passes the client's request to the container. The answer's head is available at once, its body as generated.

    The constructor raises `ModelError` if there is no answer or it is not a 2xx. `close` lets the container stop.
    """

    def __init__(self, endpoint: str, api: str, accept: str | None, time_limit: float) -> None:
        self._endpoint = endpoint
        self._deadline = time.monotonic() + time_limit
        environ = container_environ(request.environ, api, accept, self._deadline)
        try:
            self._response = Response.from_app(current_app.wsgi_app, environ)  # waits for the first chunk
        except Exception as error:
            logger.exception("the container did not complete its response")
            raise ModelError(endpoint, 500, None) from error
        self.headers = self._response.headers
        self.content_type = self.headers.get("Content-Type", "application/octet-stream")
        if self._over:
            self.close()
            raise self._timed_out()
        status = self._response.status_code
        if not 200 <= status < 300:
            raise ModelError(endpoint, status, self.read().decode(errors="replace"))

    def chunks(self) -> Iterator[bytes]:
        """Yield the body. Raises `TimeLimitExceeded`, or whatever the container raises."""
        for chunk in self._response.iter_encoded():
            if self._over:  # this chunk may only be the container's reaction to the timeout
                raise TimeLimitExceeded
            yield chunk
        if self._over:
            raise TimeLimitExceeded

    def read(self) -> bytes:
        """Return the whole body and close it. Raises `ModelError`."""
        try:
            return b"".join(self.chunks())
        except TimeLimitExceeded as error:
            raise self._timed_out() from error
        except Exception as error:
            logger.exception("the container did not complete its response")
            raise ModelError(self._endpoint, self._response.status_code, None) from error
        finally:
            self.close()

    def close(self) -> None:
        """Let the container stop: its answer is no longer read."""
        self._response.close()

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self._deadline

    def _timed_out(self) -> ModelError:
        return ModelError(self._endpoint, 0, _TIMED_OUT)


def container_environ(environ: Mapping[str, Any], api: str, accept: str | None, deadline: float) -> dict[str, Any]:
    """Derive the WSGI environment of the container's request from that of the client's.

    SageMaker passes on only Content-Type, Accept and its own headers. The body and the connection stay the client's.
    """
    derived = {
        name: value
        for name, value in environ.items()
        if not name.startswith("HTTP_") or name.startswith(_ENVIRON_PREFIX) or name in _TRANSPORT
    }
    derived.pop(_ENVIRON_PREFIX + "ACCEPT", None)
    if accept is not None:
        derived["HTTP_ACCEPT"] = accept
    derived[_ENVIRON_PREFIX + "FORWARDED_API"] = api
    derived["PATH_INFO"] = derived["RAW_URI"] = "/invocations"
    derived["QUERY_STRING"] = ""
    derived[ADMITTED] = True
    if "gunicorn.socket" in derived:
        derived["gunicorn.socket"] = ContainerSocket(derived["gunicorn.socket"], deadline)
    return derived


class ContainerSocket:
    """The client's connection as the container sees it. It reports "closed" after the `deadline`."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def getsockopt(self, level: int, option: int, length: int) -> bytes:
        """Return the kernel's answer before the deadline, then "closed". Only used for TCP_INFO."""
        if time.monotonic() >= self._deadline:
            return bytes([_TCP_CLOSE]).ljust(length, b"\0")
        value: bytes = self._sock.getsockopt(level, option, length)
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Constraint(msgspec.Struct, frozen=True):
    """AWS's rule for a header. `member` is its name in the API. A `sensitive` value is not quoted in errors."""

    header: str
    member: str
    max_length: int
    pattern: str
    sensitive: bool = False


_PRINTABLE = r"[!-~][ -~]*"
_NAME = r"[a-zA-Z0-9](-*[a-zA-Z0-9])*"
_COMMON_CONSTRAINTS = (
    Constraint(_PREFIX + "Custom-Attributes", "customAttributes", 1024, r"[\x00-\x7f]*", sensitive=True),
    Constraint(_PREFIX + "Inference-Component", "inferenceComponentName", 63, _NAME),
    Constraint(_PREFIX + "Inference-Id", "inferenceId", 64, _PRINTABLE),
    Constraint(_PREFIX + "Target-Variant", "targetVariant", 63, _NAME),
)
_CONSTRAINTS = (
    *_COMMON_CONSTRAINTS,
    Constraint(_PREFIX + "Session-Id", "sessionId", 256, f"NEW_SESSION|{_NAME}"),
    Constraint(_PREFIX + "Target-Model", "targetModel", 1024, _PRINTABLE),
)
_STREAM_CONSTRAINTS = (*_COMMON_CONSTRAINTS, Constraint(_PREFIX + "Session-Id", "sessionId", 256, _NAME))


def check_headers(headers: Headers, constraints: Iterable[Constraint]) -> None:
    """Refuse headers that AWS would refuse. Raises `ServiceError`, a 400 `ValidationError`."""
    for constraint in constraints:
        value = headers.get(constraint.header)
        if value is None:
            continue
        if len(value) > constraint.max_length:
            demand = f"Member must have length less than or equal to {constraint.max_length}"
        elif re.fullmatch(constraint.pattern, value) is None:
            demand = f"Member must satisfy regular expression pattern: {constraint.pattern}"
        else:
            continue
        shown = "" if constraint.sensitive else f" '{value}'"
        place = f"Value{shown} at '{constraint.member}'"
        message = f"1 validation error detected: {place} failed to satisfy constraint: {demand}"
        raise ServiceError(400, "ValidationError", {"Message": message})


def _answer_headers(client: Headers, container: Headers) -> dict[str, str]:
    """The headers that the client sees: the variant it asked for and the container's SageMaker headers.

    The session id header is renamed for the client.
    """
    variant = client.get(_PREFIX + "Target-Variant", "AllTraffic")
    headers = {"x-amzn-RequestId": str(uuid.uuid4()), "x-Amzn-Invoked-Production-Variant": variant}
    for name, value in container.items():
        if name.lower().startswith(_PREFIX.lower()):
            headers[_RENAMED.get(name.lower(), name)] = value
    return headers
