"""`InvokeEndpoint`: the container's complete answer."""

from __future__ import annotations

from flask import Response, request

from lmi_handlers.laptop.sagemaker_runtime.constraints import INVOKE, check_headers
from lmi_handlers.laptop.sagemaker_runtime.container import ContainerTimeLimit, answer_headers, call_container
from lmi_handlers.laptop.sagemaker_runtime.data_capture import DataCapture


class InvokeEndpoint:
    """`time_limit` is in seconds. Answers are written to `capture`, if there is one."""

    path = "/endpoints/<endpoint>/invocations"

    def __init__(self, time_limit: float, capture: DataCapture | None) -> None:
        self._time_limit = time_limit
        self._capture = capture

    def invoke(self, endpoint: str) -> Response:
        """Answer the request. Raises `ServiceError`."""
        check_headers(request.headers, INVOKE)
        captured = None if self._capture is None else self._capture.begin(endpoint)
        deadline = ContainerTimeLimit(self._time_limit)
        call = call_container(endpoint, deadline, api="InvokeEndpoint", accept=request.headers.get("Accept"))
        answer = call.read()
        if captured is not None:
            captured.write(call.content_type, answer)
        response = Response(answer, content_type=call.content_type)
        response.headers.extend(answer_headers(request.headers, call.headers))
        return response
