"""`InvokeEndpoint`: the container's complete answer."""

from __future__ import annotations

from flask import Response, request

from lmi_handlers.laptop.sagemaker_runtime.constraints import INVOKE, check_headers
from lmi_handlers.laptop.sagemaker_runtime.container import ContainerTimeLimit, answer_headers, call_container


class InvokeEndpoint:
    """`time_limit` is in seconds."""

    path = "/endpoints/<endpoint>/invocations"

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit

    def invoke(self, endpoint: str) -> Response:
        """Answer the request. Raises `ServiceError`."""
        check_headers(request.headers, INVOKE)
        deadline = ContainerTimeLimit(self._time_limit)
        call = call_container(endpoint, deadline, api="InvokeEndpoint", accept=request.headers.get("Accept"))
        response = Response(call.read(), content_type=call.content_type)
        response.headers.extend(answer_headers(request.headers, call.headers))
        return response
