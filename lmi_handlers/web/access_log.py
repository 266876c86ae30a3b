"""The request log: one line per request with path, status, tokens and times. Never the prompt or the answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from lmi_handlers.core.errors import InvalidRequest, LMIError
from lmi_handlers.core.redaction import REDACTED, is_hidden, is_secret
from lmi_handlers.core.usage import Usage
from lmi_handlers.web.receipt import milliseconds, receipt

logger = logging.getLogger(__name__)


def log_request(
    *,
    model: str,
    request_id: str,
    path: str,
    status: int,
    usage: Usage,
    attributes: Mapping[str, str] | None = None,
    error: LMIError | None = None,
    trace_id: str | None = None,
) -> dict[str, Any]:
    """Write the line, and return its fields. Times are in milliseconds since the request body arrived."""
    fields: dict[str, Any] = {
        "model": model,
        "request_id": request_id,
        "path": path,
        "status": status,
        **receipt(usage),
        "finish_reasons": usage.finish_reasons,
        "first_token_ms": milliseconds(usage.first_token_time),
        "total_ms": milliseconds(time.monotonic() - usage.started),
    }
    if usage.key_label:
        fields["key_label"] = usage.key_label
    if usage.tenant:
        fields["tenant"] = usage.tenant
    if attributes:
        fields["custom_attributes"] = {
            key: REDACTED if is_secret(key, value) else value for key, value in attributes.items()
        }
    if usage.truncated is not None:
        fields["truncated"] = usage.truncated
    if usage.joined:
        fields["joined"] = True
    if usage.continued_tokens:
        fields["continued_tokens"] = usage.continued_tokens
    if error is not None:
        fields["error"] = f"{type(error).__name__}: {_message(error)}"
        fields["error_code"] = error.code
    if trace_id is not None:
        fields["trace_id"] = trace_id
    logger.info("request", extra=fields)
    return fields


def _message(error: LMIError) -> str:
    """Return the error's message, without its text if that may have the value of a field that is not to be shown."""
    if isinstance(error, InvalidRequest) and error.field is not None and is_hidden(error.field):
        return f"{error.field}: {REDACTED}"
    return str(error)
