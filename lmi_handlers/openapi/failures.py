"""The error responses of a route."""

from __future__ import annotations

from typing import Any

from lmi_handlers.apis.routes import Failure, Route
from lmi_handlers.core.errors import EngineNotReady, QueueFull


def failures(route: Route) -> tuple[Failure, ...]:
    """Return one failure for each status: those of the endpoint's dialects, which render an error of each class."""
    reasons: dict[int, dict[str, None]] = {}
    contents: dict[int, dict[Any, None]] = {}
    retry: set[int] = set()
    for dialect in route.endpoint.dialects:
        for kind in route.endpoint.errors:
            status = dialect.error(kind("")).status
            reasons.setdefault(status, {})[str(kind.__doc__)] = None
            contents.setdefault(status, {})[dialect.error_type] = None
            if issubclass(kind, QueueFull | EngineNotReady):
                retry.add(status)
    rendered = [
        Failure(status=status, reason=" ".join(reasons[status]), content=tuple(contents[status]), retry=status in retry)
        for status in sorted(reasons)
    ]
    return (*rendered, *route.failures)
