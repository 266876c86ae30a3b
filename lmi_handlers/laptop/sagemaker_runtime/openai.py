"""OpenAI's path in front of an endpoint: chat completions, with a bearer token in place of a signature.

The body goes to the container's `/v1/chat/completions` as it is, and the answer comes back as it is, streams included.
`model` may be empty or the endpoint's name, because the container serves one model under every name.

Source: SageMaker's page on OpenAI-compatible APIs. AWS does not describe the errors: their shape is OpenAI's, as
gateways expect it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

from flask import Response, request

from lmi_handlers.laptop.sagemaker_runtime.constraints import COMPONENT, INVOKE, check_headers
from lmi_handlers.laptop.sagemaker_runtime.container import (
    ContainerCall,
    ContainerTimeLimit,
    answer_headers,
    call_container,
)
from lmi_handlers.laptop.sagemaker_runtime.errors import TIMED_OUT, ModelError, ServiceError
from lmi_handlers.laptop.sagemaker_runtime.faults import TimeLimitExceeded

_CONTAINER_PATH = "/v1/chat/completions"
_EVENTS = "text/event-stream"

logger = logging.getLogger(__name__)


class OpenAIChat:
    """An answer that is not streamed, or the first token, may take `time_limit` seconds, a stream `stream_time_limit`."""

    path = "/endpoints/<endpoint>/openai" + _CONTAINER_PATH
    component_path = "/endpoints/<endpoint>/inference-components/<component>/openai" + _CONTAINER_PATH

    def __init__(self, time_limit: float, stream_time_limit: float) -> None:
        self._time_limit = time_limit
        self._stream_time_limit = stream_time_limit

    def chat(self, endpoint: str, component: str | None = None) -> Response:
        """Answer the request. Raises `ServiceError`."""
        check_headers(request.headers, INVOKE)
        if component is not None:
            COMPONENT.check(component)
            request.environ["HTTP_X_AMZN_SAGEMAKER_INFERENCE_COMPONENT"] = component
        deadline = ContainerTimeLimit(self._time_limit)
        call = call_container(endpoint, deadline, api=None, accept=request.headers.get("Accept"), path=_CONTAINER_PATH)
        if call.content_type.startswith(_EVENTS):
            deadline.extend(self._stream_time_limit)
            response = Response(_events(call), content_type=call.content_type)
            response.call_on_close(call.close)
        else:
            response = Response(call.read(), content_type=call.content_type)
        response.headers.extend(answer_headers(request.headers, call.headers))
        return response


def _events(call: ContainerCall) -> Iterator[bytes]:
    try:
        yield from call.chunks()
    except TimeLimitExceeded:
        yield b"data: " + _document(TIMED_OUT, "server_error", "model_error") + b"\n\n"
    except Exception:
        logger.exception("the container did not complete its stream")
        message = "The connection to container primary was closed before its response was complete."
        yield b"data: " + _document(message, "server_error", "model_error") + b"\n\n"


def error_response(error: ServiceError) -> Response:
    """Render an error in OpenAI's shape."""
    response = error.response()
    if isinstance(error, ModelError):
        response.set_data(_document(str(error), "server_error", "model_error"))
    else:
        response.set_data(_document(str(error), "invalid_request_error", error.kind))
    return response


def _document(message: str, kind: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
