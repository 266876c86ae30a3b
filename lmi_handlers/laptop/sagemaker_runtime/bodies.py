"""The client's body: AWS's limits, and a copy for whoever must see all of it before the container does."""

from __future__ import annotations

import io
from typing import Any

from flask import current_app, request
from werkzeug.exceptions import RequestEntityTooLarge

from lmi_handlers.core.errors import QueueFull
from lmi_handlers.laptop.sagemaker_runtime.errors import ServiceError, refusal
from lmi_handlers.web.arriving_bodies import ArrivingBodies

MAX_BODY = 25 << 20
"""Maximum bytes of a body, from the FAQ of SageMaker hosting. botocore's model still says 6 MiB."""

MAX_ASYNC_BODY = 128_000
"""Maximum bytes of a body in an asynchronous invocation."""

_READ = "lmi.runtime_body"


def check_length(limit: int = MAX_BODY) -> None:
    """Raise a `ServiceError` if the body is certainly larger than `limit` bytes."""
    if (request.content_length or 0) > limit:
        raise _too_large(limit)


def read_body(limit: int = MAX_BODY) -> bytes:
    """Read the body, and keep it for the container. Raises a `ServiceError` if it has more than `limit` bytes."""
    check_length(limit)
    environ: dict[str, Any] = request.environ
    if _READ not in environ:
        arriving: ArrivingBodies = current_app.extensions["lmi_bodies"]
        try:
            body = arriving.read(request)
        except RequestEntityTooLarge as error:
            raise _too_large(limit) from error
        except QueueFull as error:
            raise refusal(503, "ServiceUnavailable", str(error)) from error
        environ |= {_READ: body, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ.pop("HTTP_TRANSFER_ENCODING", None)
    read: bytes = environ[_READ]
    if len(read) > limit:
        raise _too_large(limit)
    return read


def _too_large(limit: int) -> ServiceError:
    return refusal(413, "413", f"HTTP content length exceeded {limit} bytes.")
