"""The request log: one line per request with path, status, tokens and times. Never the prompt or the answer."""

from __future__ import annotations

import logging
import time

from lmi_handlers.core.usage import Usage

logger = logging.getLogger(__name__)


def log_request(*, request_id: str, path: str, status: int, usage: Usage, error: str | None = None) -> None:
    """Write the line. Times are in milliseconds since the request body arrived."""
    fields: dict[str, object] = {
        "request_id": request_id,
        "path": path,
        "status": status,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "finish_reasons": usage.finish_reasons,
        "queue_ms": _milliseconds(usage.queue_time),
        "first_token_ms": _milliseconds(usage.first_token_time),
        "total_ms": _milliseconds(time.monotonic() - usage.started),
    }
    if error is not None:
        fields["error"] = error
    logger.info("request", extra=fields)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
