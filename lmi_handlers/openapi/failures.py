"""The error responses of a route."""

from __future__ import annotations

from typing import Any

import msgspec

from lmi_handlers.apis.routes import Failure, Route
from lmi_handlers.core.errors import EngineNotReady, LMIError, QueueFull


def failures(route: Route) -> tuple[Failure, ...]:
    """Return one failure for each status: those of the endpoint's dialects, which render an error of each class."""
    reasons: dict[int, dict[str, None]] = {}
    examples: dict[int, dict[type, object]] = {}
    contents: dict[int, dict[Any, None]] = {}
    retry: set[int] = set()
    for dialect in route.endpoint.dialects:
        for kind in route.endpoint.errors:
            reply = dialect.error(kind(_message(kind)))
            status = reply.status
            examples.setdefault(status, {}).setdefault(dialect.error_type, msgspec.json.decode(reply.body))
            reasons.setdefault(status, {})[str(kind.__doc__)] = None
            contents.setdefault(status, {})[dialect.error_type] = None
            if issubclass(kind, QueueFull | EngineNotReady):
                retry.add(status)
    rendered = [
        Failure(
            status=status,
            reason=" ".join(reasons[status]),
            content=tuple(contents[status]),
            retry=status in retry,
            examples=tuple(examples[status].values()),
        )
        for status in sorted(reasons)
    ]
    return (*rendered, *route.failures)


def _message(kind: type[LMIError]) -> str:
    """Return an example of a message: the first sentence of what the class says, as errors begin."""
    return str(kind.__doc__).partition(".")[0]
