"""SageMaker's runtime API on the container's own port, so that an unmodified AWS client works against a laptop.

    boto3 -> POST /endpoints/<name>/invocations                    -> /invocations of this app -> its answer
    boto3 -> POST /endpoints/<name>/invocations-response-stream    -> /invocations of this app -> an event stream
    boto3 -> POST /endpoints/<name>/async-invocations              -> 202; /invocations of this app -> an object in S3
    openai -> POST /endpoints/<name>/openai/v1/chat/completions    -> /v1/chat/completions of this app -> its answer

The package does what AWS does between client and container: it checks signatures, limits and names, maps headers both
ways, turns the container's errors into 424 `ModelError`, and limits its time. With an API key, the client's access key
id must be that key; `access_control` checks it before the container is called.

Sources: the API reference of the SageMaker runtime, botocore's service model, and error messages quoted by users.
"""

from __future__ import annotations

from flask import Blueprint, Response, g, request

from lmi_handlers.config.local_runtime import LocalRuntimeSettings
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.laptop.sagemaker_runtime.access_keys import read_access_keys
from lmi_handlers.laptop.sagemaker_runtime.async_invocations import AsyncInvocations
from lmi_handlers.laptop.sagemaker_runtime.bodies import check_length, read_body
from lmi_handlers.laptop.sagemaker_runtime.constraints import ENDPOINT_NAME
from lmi_handlers.laptop.sagemaker_runtime.container import INVOKE_TIME_LIMIT, STREAM_TIME_LIMIT
from lmi_handlers.laptop.sagemaker_runtime.data_capture import DataCapture
from lmi_handlers.laptop.sagemaker_runtime.errors import ACCOUNT, ServiceError, refusal, validation_error
from lmi_handlers.laptop.sagemaker_runtime.faults import Fault, FaultsFile
from lmi_handlers.laptop.sagemaker_runtime.invoke import InvokeEndpoint
from lmi_handlers.laptop.sagemaker_runtime.invoke_async import InvokeEndpointAsync
from lmi_handlers.laptop.sagemaker_runtime.invoke_stream import InvokeEndpointWithResponseStream
from lmi_handlers.laptop.sagemaker_runtime.openai import OpenAIChat, error_response

_BEARER = "bearer "
_OPERATIONS = {
    "local_runtime.invoke_endpoint": "InvokeEndpoint",
    "local_runtime.invoke_endpoint_with_response_stream": "InvokeEndpointWithResponseStream",
    "local_runtime.invoke_endpoint_async": "InvokeEndpointAsync",
}


def check_local_runtime(settings: LocalRuntimeSettings) -> None:
    """Raise `ConfigError` if `local_runtime` would. Imports no AWS library, because gevent has to come first."""
    if settings.keys_file is not None:
        read_access_keys(settings.keys_file)
    if settings.async_output is not None:
        AsyncInvocations(settings, workers=1)
    if settings.faults_file is not None:
        FaultsFile(settings.faults_file).check()
    if settings.capture_folder is not None:
        DataCapture(settings.capture_folder).check()


def local_runtime(
    settings: LocalRuntimeSettings,
    *,
    workers: int = 1,
    invoke_time_limit: float = INVOKE_TIME_LIMIT,
    stream_time_limit: float = STREAM_TIME_LIMIT,
) -> Blueprint:
    """Build the routes for one of `workers` web workers. The limits are in seconds. Raises `ConfigError`."""
    capture = None if settings.capture_folder is None else DataCapture(settings.capture_folder)
    plain = InvokeEndpoint(invoke_time_limit, capture)
    streamed = InvokeEndpointWithResponseStream(
        stream_time_limit, capture, split_payload_parts=settings.split_payload_parts
    )
    queued = InvokeEndpointAsync(None if settings.async_output is None else AsyncInvocations(settings, workers))
    openai = OpenAIChat(invoke_time_limit, stream_time_limit)
    blueprint = Blueprint("local_runtime", __name__)
    for path, name, view in (
        (plain.path, "invoke_endpoint", plain.invoke),
        (streamed.path, "invoke_endpoint_with_response_stream", streamed.invoke),
        (queued.path, "invoke_endpoint_async", queued.invoke),
        (openai.path, "chat_completions", openai.chat),
        (openai.component_path, "component_chat_completions", openai.chat),
        (
            "/endpoints/<endpoint>/invocations-bidirectional-stream",
            "invoke_endpoint_with_bidirectional_stream",
            _refuse,
        ),
    ):
        blueprint.add_url_rule(path, name, view, methods=["POST"])
    blueprint.before_request(_Admission(settings).admit)
    blueprint.register_error_handler(ServiceError, _error_response)
    return blueprint


class _Admission:
    """Checks of AWS for all operations: the signature, the endpoint's name and the size of the body. Then the fault."""

    def __init__(self, settings: LocalRuntimeSettings) -> None:
        self._endpoint_name = settings.endpoint_name
        self._faults = None if settings.faults_file is None else FaultsFile(settings.faults_file)
        self._signatures = None
        if settings.keys_file is not None:
            keys = read_access_keys(settings.keys_file)
            from lmi_handlers.laptop.sagemaker_runtime.signatures import Signatures  # needs botocore

            self._signatures = Signatures(keys)

    def admit(self) -> None:
        """Raise `ServiceError` if the request must not reach its operation."""
        check_length()
        if self._signatures is not None:
            authorization = request.headers.get("Authorization", "")
            if _for_openai() and authorization[: len(_BEARER)].lower() == _BEARER:
                self._signatures.check_token(authorization[len(_BEARER) :].strip())
            else:
                target = request.environ.get("RAW_URI") or request.full_path.rstrip("?")
                self._signatures.check(request.method, target, request.headers, read_body())
        endpoint = (request.view_args or {})["endpoint"]
        ENDPOINT_NAME.check(endpoint)
        if self._endpoint_name not in (None, endpoint):
            raise validation_error(f"Endpoint {endpoint} of account {ACCOUNT} not found.")
        if self._faults is not None:
            g.lmi_fault = self._take_fault(self._faults)
            g.lmi_fault.admit()

    def _take_fault(self, faults: FaultsFile) -> Fault:
        try:
            return faults.take(_OPERATIONS.get(request.endpoint or "", ""))
        except ConfigError as error:
            raise refusal(500, "InternalFailure", str(error)) from error


def _refuse(endpoint: str) -> Response:
    raise validation_error(
        f"InvokeEndpointWithBidirectionalStream is not supported for endpoint {endpoint}: it needs HTTP/2. "
        "Open a WebSocket at /invocations-bidirectional-stream, as SageMaker does, or use InvokeEndpointWithResponseStream."
    )


def _error_response(error: ServiceError) -> Response:
    return error_response(error) if _for_openai() else error.response()


def _for_openai() -> bool:
    return (request.endpoint or "").endswith("chat_completions")
