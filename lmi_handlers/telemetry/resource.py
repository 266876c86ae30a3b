"""The OpenTelemetry resource: what its metrics and traces are about. Imports the SDK."""

from __future__ import annotations

import socket
from importlib.metadata import version

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource

_DISTRIBUTION = "lmi-handlers"


def server_resource() -> Resource:
    """Return the resource of this server. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence."""
    given = Resource.create().attributes
    defaults = {
        SERVICE_NAME: _DISTRIBUTION,
        SERVICE_VERSION: version(_DISTRIBUTION),
        SERVICE_INSTANCE_ID: socket.gethostname(),
    }
    missing = {
        name: value
        for name, value in defaults.items()
        if name not in given or str(given[name]).startswith("unknown_service")
    }
    return Resource({**given, **missing})
