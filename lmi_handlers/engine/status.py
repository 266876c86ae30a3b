"""Readiness for requests, as a web worker knows it: from the engine process's announcements and its heartbeat."""

from __future__ import annotations

import enum
import threading
import time
from abc import ABC, abstractmethod

from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.engine.heartbeat import HeartbeatReader
from lmi_handlers.engine.messages import Loading

NOT_FINISHED = "the server is shutting down and the request did not finish in time"
"""The error of requests that are in flight at the end of the time for draining."""


def not_ready(phase: str) -> str:
    """Return what a client is told while no requests are accepted."""
    return f"the model is not ready: {phase}"


class EngineState(enum.Enum):
    """STARTING also covers restarts. DRAINING means that this worker is shutting down.

    STALLED means that the engine shows no sign of life. It may resume, or its supervisor kills it.
    """

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"


class Status(ABC):
    """The readiness of a model for requests. Known without asking an engine, so `/ping` can always answer."""

    @property
    @abstractmethod
    def state(self) -> EngineState:
        """The current state."""

    @property
    @abstractmethod
    def phase(self) -> str:
        """The engine's phase, or its trouble, in a few words."""

    @property
    @abstractmethod
    def phase_seconds(self) -> float:
        """The duration of the current phase."""

    @abstractmethod
    def wait_ready(self, timeout: float) -> None:
        """Return as soon as requests are accepted, or after `timeout` seconds."""

    @abstractmethod
    def start_draining(self) -> None:
        """Note that the worker is shutting down. Requests in flight continue."""


class EngineStatus(Status):
    """The state of one engine, or of what runs in its place."""

    def __init__(self, heartbeat: HeartbeatReader, stall_timeout: float) -> None:
        self._heartbeat = heartbeat
        self._stall_timeout = stall_timeout
        self._ready = threading.Event()
        self._draining = False
        self._doing = Loading(LoadPhase.STARTING.value, time.monotonic())

    @property
    def state(self) -> EngineState:
        if self._draining:
            return EngineState.DRAINING
        if not self._ready.is_set():
            return EngineState.STARTING
        return EngineState.READY if self.stall() is None else EngineState.STALLED

    @property
    def accepts(self) -> bool:
        """True if the engine takes requests. Draining does not matter."""
        return self._ready.is_set() and self.stall() is None

    @property
    def phase(self) -> str:
        return self.stall() or self._loading_phase()

    @property
    def phase_seconds(self) -> float:
        return time.monotonic() - self._doing.since

    def stall(self) -> str | None:
        """Return why an engine that is ready should get no requests for now, or None."""
        return self._heartbeat.suspicion(self._stall_timeout) if self._ready.is_set() else None

    def wait_ready(self, timeout: float) -> None:
        self._ready.wait(timeout)

    def check(self) -> None:
        """Raise `EngineNotReady` unless requests are accepted. Draining does not matter."""
        if not self._ready.is_set():
            raise EngineNotReady(not_ready(self._loading_phase()))
        if (stall := self.stall()) is not None:
            raise EngineNotReady(stall, code="engine_stalled")

    def _loading_phase(self) -> str:
        """Return what the engine is doing. If it has ended, its heartbeat says why."""
        cause = "" if self._ready.is_set() else self._heartbeat.cause
        return f"{self._doing.phase}: {cause}" if cause else self._doing.phase

    def ready(self) -> None:
        """Note that requests are accepted from now on."""
        self._doing = Loading("ready", time.monotonic())
        self._ready.set()

    def loading(self, doing: Loading) -> None:
        """Note that requests are not accepted, and what is going on."""
        self._ready.clear()
        self._doing = doing

    def start_draining(self) -> None:
        self._draining = True
