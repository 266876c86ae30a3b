"""The model of a web worker, whoever answers: an engine, or the model's own code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.custom_attributes import OWN_PREFIX, list_keys
from lmi_handlers.core.deadline import Cutoff, Deadline
from lmi_handlers.core.event_loop import RunBeside, at_once
from lmi_handlers.engine.settings import metrics_dir, recent_dir
from lmi_handlers.engine.status import EngineState, Status
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.telemetry.recent import RecentRequests

PATIENCE = 1.0
"""Seconds that a request waits for an engine that is not ready.

Another worker may have answered `/ping` with 200 because it heard from the engine a moment earlier. A worker that was
just started has not heard from it at all.
"""


class Served(ABC):
    """The model that this worker serves. What answers runs in other processes. Thread-safe.

    `run_beside` runs long work off the event loop. Workers that have an event loop set it. `runtime_dir` is the directory
    that the server's processes share.
    """

    def __init__(self, properties: ServingProperties, runtime_dir: Path, status: Status) -> None:
        self.name = properties.name
        self.properties = properties
        self.runtime_dir = runtime_dir
        self.metrics = RequestMetrics(metrics_dir(runtime_dir), self.name)
        self.predict_timeout = properties.predict_timeout
        listed = list_keys(properties.custom_attributes)
        self.custom_attributes = tuple(key for key in listed if not key.lower().startswith(OWN_PREFIX))
        self.tenant_attribute = properties.tenant_attribute.strip(" ,")
        self.receipts = properties.receipts
        self.server_timing = properties.server_timing
        self.run_beside: RunBeside = at_once
        self.recent: RecentRequests | None = None
        self._status = status

    def keep_recent(self) -> None:
        """Keep the last requests for the console."""
        self.recent = RecentRequests(recent_dir(self.runtime_dir), prompts=self.properties.console_prompts)

    @abstractmethod
    def start(self) -> None:
        """Connect in the background."""

    def close(self) -> None:
        """Disconnect: the model is served no more, and all of its requests have ended."""
        self.metrics.close()
        if self.recent is not None:
            self.recent.close()

    def deadline(self, started: float, connected: Callable[[], bool], cutoff: Cutoff | None = None) -> Deadline:
        """Return the deadline of a request that arrived at the monotonic time `started`."""
        return Deadline(started + self.predict_timeout, connected, cutoff)

    @property
    def state(self) -> EngineState:
        """The engine's state, for `/ping`. Never blocks."""
        return self._status.state

    @property
    def engines(self) -> Sequence[Status]:
        """The state of each engine."""
        return (self._status,)

    @property
    def phase(self) -> str:
        """The engine's phase, in a few words."""
        return self._status.phase

    @property
    def phase_seconds(self) -> float:
        """The duration of that phase."""
        return self._status.phase_seconds

    def start_draining(self) -> None:
        """Make `/ping` report that the worker is shutting down."""
        self._status.start_draining()

    @abstractmethod
    def end_draining(self) -> None:
        """Fail all requests that are still in flight."""
