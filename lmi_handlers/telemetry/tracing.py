"""The traces of this process, for modules that must not import OpenTelemetry."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from lmi_handlers.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from lmi_handlers.telemetry.traces import Traces


@cache
def worker_traces() -> Traces | None:
    """Return this web worker's trace recorder, or None if tracing is off.

    Its thread would not survive a fork, and gevent must have patched the worker before: never call it in the arbiter.
    """
    settings = TelemetrySettings.from_environ(os.environ)
    if not settings.traces:
        return None
    from lmi_handlers.telemetry.traces import Traces

    return Traces(settings)
