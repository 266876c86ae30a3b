"""`InvokeEndpointAsync`: accepts a request and says where its answer will be."""

from __future__ import annotations

import json
import time
import uuid
from datetime import datetime, timezone

from flask import Flask, Response, current_app, request

from lmi_handlers.laptop.sagemaker_runtime.async_invocations import AsyncInvocation, AsyncInvocations
from lmi_handlers.laptop.sagemaker_runtime.bodies import MAX_ASYNC_BODY, read_body
from lmi_handlers.laptop.sagemaker_runtime.constraints import (
    INVOCATION_TIMEOUT,
    INVOKE_ASYNC,
    PREFIX,
    REQUEST_TTL,
    check_headers,
)
from lmi_handlers.laptop.sagemaker_runtime.container import current_fault
from lmi_handlers.laptop.sagemaker_runtime.errors import validation_error
from lmi_handlers.laptop.sagemaker_runtime.storage import parse_input
from lmi_handlers.web.access_control import KEY_LABEL

_DEFAULT_TTL, _DEFAULT_TIMEOUT = 21600, 900


class InvokeEndpointAsync:
    """Without `invocations`, every request is refused."""

    path = "/endpoints/<endpoint>/async-invocations"

    def __init__(self, invocations: AsyncInvocations | None) -> None:
        self._invocations = invocations

    def invoke(self, endpoint: str) -> Response:
        """Answer the request. Raises `ServiceError`."""
        if self._invocations is None:
            raise validation_error(
                f"Endpoint {endpoint} has no AsyncInferenceConfig: start the server with --async-output"
            )
        invocation = _accepted(endpoint)
        self._invocations.submit(invocation)
        headers = {
            "x-amzn-RequestId": str(uuid.uuid4()),
            PREFIX + "OutputLocation": self._invocations.outputs.url(invocation.output),
            PREFIX + "FailureLocation": self._invocations.failures.url(invocation.failure),
        }
        document = json.dumps({"InferenceId": invocation.inference_id})
        return Response(document, 202, headers, content_type="application/json")


def _accepted(endpoint: str) -> AsyncInvocation:
    """Check the request that Flask is handling. Raises `ServiceError`."""
    headers = request.headers
    check_headers(headers, INVOKE_ASYNC)
    body = read_body(MAX_ASYNC_BODY)
    given = headers.get(PREFIX + "InputLocation")
    if bool(body) == (given is not None):
        raise validation_error("Body and InputLocation are mutually exclusive. Provide exactly one of them.")
    location = None if given is None else parse_input(given)
    if given is not None and location is None:
        raise validation_error(f"InputLocation {given} is not the URL of an object in S3")
    identifier = str(uuid.uuid4())
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001  a proxy does not outlive the request
    folder = _extension(headers.get(PREFIX + "S3OutputPathExtension"))
    return AsyncInvocation(
        app=app,
        endpoint=endpoint,
        key_label=request.environ.get(KEY_LABEL, ""),
        inference_id=headers.get(PREFIX + "Inference-Id") or identifier,
        content_type=headers.get(PREFIX + "Content-Type"),
        accept=headers.get(PREFIX + "Accept"),
        custom_attributes=headers.get(PREFIX + "Custom-Attributes"),
        body=body if given is None else None,
        location=location,
        fault=current_fault(),
        received=datetime.now(timezone.utc),
        expires=time.monotonic() + REQUEST_TTL.seconds(headers, _DEFAULT_TTL),
        time_limit=INVOCATION_TIMEOUT.seconds(headers, _DEFAULT_TIMEOUT),
        output=folder + (headers.get(PREFIX + "Filename") or f"{identifier}.out"),
        failure=f"{identifier}-error.out",
    )


def _extension(given: str | None) -> str:
    """Return the folder below that of all answers, with a slash, or "". Raises `ServiceError`."""
    if given is None:
        return ""
    parts = given.strip("/").split("/")
    if not all(part.strip(".") for part in parts):
        raise validation_error(f"S3OutputPathExtension {given} has an empty name, '.' or '..' in it")
    return "/".join(parts) + "/"
