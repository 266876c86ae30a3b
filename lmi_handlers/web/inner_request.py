"""Requests that the server makes to its own application, in the place of a client whose request it has admitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmi_handlers.web.access_control import ADMITTED

SAGEMAKER_HEADERS = "HTTP_X_AMZN_SAGEMAKER_"
"""The beginning of SageMaker's headers in a WSGI environment."""

HANDSHAKE = "lmi.handshake"
"""In the WSGI environment of a WebSocket's request: that of the handshake, whose headers name the tenant."""

_TRANSPORT = ("HTTP_HOST", "HTTP_TRANSFER_ENCODING")


def inner_environ(environ: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Derive the WSGI environment of a request to `path` from that of the client's request.

    Of the client's headers, it has those of the body and SageMaker's own, as all that SageMaker passes on to a container.
    The body and the connection stay the client's.
    """
    derived = {
        name: value
        for name, value in environ.items()
        if not name.startswith("HTTP_") or name.startswith(SAGEMAKER_HEADERS) or name in _TRANSPORT
    }
    return derived | {"PATH_INFO": path, "RAW_URI": path, ADMITTED: True}
