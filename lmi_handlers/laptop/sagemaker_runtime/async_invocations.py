"""Runs asynchronous invocations: a queue in memory, a few at a time, and an object in S3 or a file for each.

Each web worker has a queue of its own. Nothing is written down: what is queued or running is lost with the process.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from datetime import datetime, timezone
from typing import Any

import msgspec
from flask import Flask
from werkzeug.test import EnvironBuilder

from lmi_handlers.config.local_runtime import LocalRuntimeSettings
from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.laptop.sagemaker_runtime.constraints import PREFIX
from lmi_handlers.laptop.sagemaker_runtime.container import (
    INVOCATIONS,
    ContainerCall,
    ContainerTimeLimit,
    NoClient,
    container_environ,
)
from lmi_handlers.laptop.sagemaker_runtime.errors import REGION, ModelError, refusal
from lmi_handlers.laptop.sagemaker_runtime.faults import Fault
from lmi_handlers.laptop.sagemaker_runtime.notifications import Topic, timestamp
from lmi_handlers.laptop.sagemaker_runtime.storage import parse_folder, read_input
from lmi_handlers.model_files.s3_url import S3Url
from lmi_handlers.web.access_control import KEY_LABEL

MAX_QUEUED = 1000
"""Per web worker. With the largest inline bodies, this takes 128 MB."""

logger = logging.getLogger(__name__)


class AsyncInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was accepted. Its input is either `body` or the object `location`.

    `key_label` is that of the client's API key, "" if none is needed. `expires` is a monotonic time, `time_limit` is in
    seconds. `output` and `failure` are paths below the folders.
    """

    app: Flask
    endpoint: str
    key_label: str
    inference_id: str
    content_type: str | None
    accept: str | None
    custom_attributes: str | None
    body: bytes | None
    location: S3Url | None
    fault: Fault
    received: datetime
    expires: float
    time_limit: int
    output: str
    failure: str


class AsyncInvocations:
    """The queue and the threads that work on it. They start with the first invocation."""

    def __init__(self, settings: LocalRuntimeSettings, workers: int) -> None:
        """The limit of concurrent invocations is divided by the number of web `workers`. Raises `ConfigError`."""
        output = settings.async_output or ""
        self.outputs = parse_folder("--async-output", output)
        self.failures = parse_folder("--async-failure", settings.async_failure or output)
        self._success, self._error = (
            None if url is None else Topic(name, url)
            for name, url in (
                ("async-success", settings.async_success_url),
                ("async-error", settings.async_error_url),
            )
        )
        self._concurrency = max(1, settings.async_concurrency // workers)
        self._queue: queue.Queue[AsyncInvocation] = queue.Queue(MAX_QUEUED)
        self._threads: list[threading.Thread] = []

    def submit(self, invocation: AsyncInvocation) -> None:
        """Queue an invocation. Raises a `ServiceError` if the queue is full."""
        try:
            self._queue.put_nowait(invocation)
        except queue.Full:
            raise refusal(503, "ServiceUnavailable", f"{MAX_QUEUED} asynchronous invocations are waiting") from None
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(target=self._work, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while True:
            invocation = self._queue.get()
            try:
                self._run(invocation)
            except Exception:
                logger.exception("asynchronous invocation %s was lost", invocation.inference_id)

    def _run(self, invocation: AsyncInvocation) -> None:
        try:
            call = _call_container(invocation)
            self.outputs.write(invocation.output, call.read(), call.content_type)
        except (ModelError, ConfigError, LoadFailed, _Expired) as error:
            self._fail(invocation, f"ClientError: {error}")
            return
        if self._success is not None:
            response = {"contentType": call.content_type, "outputLocation": self.outputs.url(invocation.output)}
            outcome = {"invocationStatus": "Completed", "responseParameters": response}
            self._success.publish(_result(invocation, outcome))

    def _fail(self, invocation: AsyncInvocation, reason: str) -> None:
        logger.warning("asynchronous invocation %s failed: %s", invocation.inference_id, reason)
        try:
            self.failures.write(invocation.failure, reason.encode(), "text/plain; charset=utf-8")
        except (ConfigError, LoadFailed) as error:
            logger.warning("the failure of asynchronous invocation %s is lost: %s", invocation.inference_id, error)
        if self._error is not None:
            self._error.publish(_result(invocation, {"invocationStatus": "Failed", "failureReason": reason}))


class _Expired(Exception):
    """The invocation waited for too long."""


def _call_container(invocation: AsyncInvocation) -> ContainerCall:
    """Raises `ModelError`, `ConfigError`, `LoadFailed` or `_Expired`."""
    if time.monotonic() >= invocation.expires:
        raise _Expired("The request expired before it could be processed (RequestTTLSeconds).")
    app, body = invocation.app, invocation.body
    if invocation.location is not None:
        body = read_input(invocation.location, app.config["MAX_CONTENT_LENGTH"] - 1)
    headers = [(PREFIX + "Inference-Id", invocation.inference_id)]
    if invocation.custom_attributes is not None:
        headers.append((PREFIX + "Custom-Attributes", invocation.custom_attributes))
    client = EnvironBuilder(
        INVOCATIONS, method="POST", data=body, content_type=invocation.content_type, headers=headers
    ).get_environ()
    deadline = ContainerTimeLimit(invocation.time_limit)
    with app.app_context():
        environ = container_environ(
            client | {"gunicorn.socket": NoClient(), KEY_LABEL: invocation.key_label},
            "InvokeEndpointAsync",
            invocation.accept,
            deadline,
        )
    return ContainerCall(invocation.fault.around(app.wsgi_app), invocation.endpoint, environ, deadline, source="model")


def _result(invocation: AsyncInvocation, outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the message of SageMaker's notifications."""
    asked = {
        "accept": invocation.accept,
        "contentType": invocation.content_type,
        "customAttributes": invocation.custom_attributes,
        "endpointName": invocation.endpoint,
        "inputLocation": None if invocation.location is None else str(invocation.location),
    }
    return {
        "awsRegion": REGION,
        "eventTime": timestamp(datetime.now(timezone.utc)),
        "receivedTime": timestamp(invocation.received),
        **outcome,
        "requestParameters": {name: value for name, value in asked.items() if value is not None},
        "inferenceId": invocation.inference_id,
        "eventVersion": "1.0",
        "eventSource": "aws:sagemaker",
        "eventName": "InferenceResult",
    }
