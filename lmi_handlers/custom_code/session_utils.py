"""`djl_python.session_utils`: the answers to requests that begin and end a session, as LMI writes them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from lmi_handlers.custom_code.async_utils import create_non_stream_output
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.custom_code.sessions import Session, SessionManager

HEADER_SAGEMAKER_SESSION_ID = "X-Amzn-SageMaker-Session-Id"
HEADER_SAGEMAKER_CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"

_FAILED = 424


async def create_session(request: tuple[SessionManager, Input]) -> dict[str, Any]:
    """Begin a session, and return what `session_non_stream_output_formatter` makes an answer of."""
    manager, _ = request
    try:
        session = manager.create_session()
    except Exception as error:  # noqa: BLE001  the client is told
        return {"error": f"Failed to create session: {error}", "code": _FAILED}
    expires = datetime.fromtimestamp(session.expiration_ts, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "data": {"result": f"Session {session.session_id} created"},
        "properties": {HEADER_SAGEMAKER_SESSION_ID: f"{session.session_id}; Expires={expires}"},
    }


async def close_session(request: tuple[SessionManager, Input]) -> dict[str, Any]:
    """End the session that the request's header names, and return the same kind of result."""
    manager, inputs = request
    session_id = inputs.get_property(HEADER_SAGEMAKER_SESSION_ID)
    try:
        manager.close_session(session_id)
    except Exception as error:  # noqa: BLE001  the client is told
        return {"error": f"Failed to close session: {error}", "code": _FAILED}
    return {
        "data": {"result": f"Session {session_id} closed"},
        "properties": {HEADER_SAGEMAKER_CLOSED_SESSION_ID: str(session_id)},
    }


def get_session(session_manager: SessionManager | None, request: Input) -> Session | None:
    """Return the session that the request's header names, or None. Raises `ValueError` if there is no such session.

    Raises `RuntimeError` if there is a header, but no manager.
    """
    session_id = request.get_property(HEADER_SAGEMAKER_SESSION_ID)
    if session_manager is not None:
        return session_manager.get_session(session_id)
    if session_id is not None:
        raise RuntimeError(
            f"stateful sessions are not enabled, so the header {HEADER_SAGEMAKER_SESSION_ID} is not supported"
        )
    return None


def session_non_stream_output_formatter(response: dict[str, Any], **_: object) -> Output:
    """Return the answer to a request that began or ended a session."""
    if "error" in response:
        return create_non_stream_output("", error=response["error"], code=response["code"])
    return create_non_stream_output(response["data"], properties=response.get("properties"))
