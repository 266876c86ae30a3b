"""`InvokeEndpointWithResponseStream`: the container's answer as an event stream, sent as it is generated."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from flask import Response, request

from lmi_handlers.laptop.sagemaker_runtime import eventstream
from lmi_handlers.laptop.sagemaker_runtime.constraints import INVOKE_STREAM, PREFIX, check_headers
from lmi_handlers.laptop.sagemaker_runtime.container import (
    ContainerCall,
    ContainerTimeLimit,
    answer_headers,
    call_container,
)
from lmi_handlers.laptop.sagemaker_runtime.data_capture import CapturedRequest, DataCapture
from lmi_handlers.laptop.sagemaker_runtime.errors import TIMED_OUT
from lmi_handlers.laptop.sagemaker_runtime.faults import ServiceFailure, TimeLimitExceeded

PART_SIZE = 65536
"""Maximum bytes per `PayloadPart`. AWS documents no number, only that a part may end anywhere."""

logger = logging.getLogger(__name__)


class InvokeEndpointWithResponseStream:
    """`split_payload_parts` cuts streams at awkward places. `time_limit` is in seconds. Answers are written to `capture`."""

    path = "/endpoints/<endpoint>/invocations-response-stream"

    def __init__(self, time_limit: float, capture: DataCapture | None, *, split_payload_parts: bool) -> None:
        self._time_limit = time_limit
        self._capture = capture
        self._split_payload_parts = split_payload_parts

    def invoke(self, endpoint: str) -> Response:
        """Answer the request. Raises `ServiceError`."""
        check_headers(request.headers, INVOKE_STREAM)
        accept = request.headers.get(PREFIX + "Accept")
        captured = None if self._capture is None else self._capture.begin(endpoint)
        deadline = ContainerTimeLimit(self._time_limit)
        call = call_container(endpoint, deadline, api="InvokeEndpointWithResponseStream", accept=accept)
        response = Response(self._events(call, captured), content_type=eventstream.CONTENT_TYPE)
        response.call_on_close(call.close)
        response.headers.extend(answer_headers(request.headers, call.headers))
        response.headers[PREFIX + "Content-Type"] = call.content_type
        return response

    def _events(self, call: ContainerCall, captured: CapturedRequest | None) -> Iterator[bytes]:
        chunks = call.chunks()
        if captured is not None:
            chunks = captured.observed(chunks, call.content_type)
        try:
            for chunk in eventstream.split_parts(chunks) if self._split_payload_parts else chunks:
                for start in range(0, len(chunk), PART_SIZE):
                    yield eventstream.payload_part(chunk[start : start + PART_SIZE])
        except TimeLimitExceeded:
            yield eventstream.model_stream_error("ModelInvocationTimeExceeded", TIMED_OUT)
        except ServiceFailure:
            yield eventstream.internal_stream_failure("An internal failure occurred.")
        except Exception:
            logger.exception("the container did not complete its stream")
            message = "The connection to container primary was closed before its response was complete."
            yield eventstream.model_stream_error("StreamBroken", message)
