"""The models of a server in one web worker: an application for each of those that run."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lmi_handlers.core.errors import EngineNotReady, LMIError, ModelNotFound, NoRoomYet, QueueFull
from lmi_handlers.core.event_loop import RunBeside
from lmi_handlers.engine.status import EngineState
from lmi_handlers.models.command_socket import ask
from lmi_handlers.models.held_model import HeldApp, HeldModel, hold_model
from lmi_handlers.models.messages import Command, Wake
from lmi_handlers.models.registry import (
    RUNNING,
    Models,
    ModelState,
    RegisteredModel,
    model_runtime_dir,
    models_file,
    read_models,
)
from lmi_handlers.telemetry.recent import RecentRequests

_FOLLOW_INTERVAL = 0.05
_WAIT_INTERVAL = 0.02
_CONNECTED_INTERVAL = 1.0
_ROOM_INTERVAL = 0.5
"""Seconds after which the manager is asked again whether there is room for a model now."""
_CONNECTING = 10.0

logger = logging.getLogger(__name__)


class ModelApps:
    """Follows the models that the manager has, and keeps an application for each that runs.

    `make` makes the application of a model with this runtime directory, and connects it to its engines. A request for a
    model that sleeps waits up to `patience` seconds until it is awake, with at most `most_waiting` others.
    """

    def __init__(
        self,
        runtime_dir: Path,
        make: Callable[[Path], HeldApp],
        *,
        patience: float,
        most_waiting: int,
        default_model: str | None = None,
    ) -> None:
        self.predict_timeout = patience
        self.runtime_dir = runtime_dir
        self.recent: RecentRequests | None = None
        """Requests that reach no model, if the console shows them."""
        self._make = make
        self._default_model = default_model
        self._models: Models | None = None
        self._seen: tuple[int, int] | None = None
        self._held: dict[str, HeldModel] = {}
        self._retired: list[HeldModel] = []
        self._failures: dict[int, str] = {}
        self._lock = threading.RLock()
        self._awaited: dict[str, threading.Event] = {}
        self._no_room: dict[str, tuple[float, str]] = {}
        self._waiting = 0
        self._most_waiting = most_waiting
        self._run_beside: RunBeside | None = None
        self.draining = False
        self._ends = False

    def start(self) -> None:
        """Follow the manager in the background."""
        threading.Thread(target=self._follow, name="models", daemon=True).start()

    # What there is

    @property
    def models(self) -> Models | None:
        """All models, in order of arrival. None before the manager knows them."""
        self._refresh()
        return self._models

    @property
    def held(self) -> list[HeldModel]:
        """The models that run."""
        return list(self._held.values())

    @property
    def default(self) -> str | None:
        """The model of requests that name none: the one that is configured, or the only one."""
        if self._default_model is not None:
            return self._default_model
        models = self.models or {}
        return next(iter(models)) if len(models) == 1 else None

    def called(self, name: str) -> str | None:
        """Return the model that clients may call `name`: the one of this name, or else the first that also has it."""
        models = self.models or {}
        if name in models:
            return name
        return next((model for model, entry in models.items() if name in entry.names), None)

    def state_of(self, entry: RegisteredModel) -> tuple[EngineState | ModelState, str]:
        """Return the state of a model, as this worker knows it, and what it is doing or why it has failed."""
        if self.draining:
            return EngineState.DRAINING, "the server is shutting down"
        held = self._held.get(entry.name)
        if held is not None and held.entry.number == entry.number and entry.state in RUNNING:
            return held.app.model.state, held.app.model.phase
        if (failure := self._failures.get(entry.number)) is not None:
            return ModelState.FAILED, failure
        return entry.state, entry.cause or entry.state.value

    # Requests

    def find(self, name: str) -> HeldModel:
        """Return a model for a request. Raises `ModelNotFound`, and `EngineNotReady` if it has no engine."""
        entry = self._entry(name)
        held = self._held.get(name)
        if held is None:
            raise EngineNotReady(f"model {name} is not ready: {self.state_of(entry)[1]}")
        return held

    def find_awake(self, name: str, connected: Callable[[], bool]) -> HeldModel:
        """Return a model for a request. If it sleeps, wake it and wait for it.

        Raises `ModelNotFound`, `EngineNotReady`, `QueueFull`, and `InsufficientMemory` if there is no room to wake it,
        or was none in all that time.
        """
        entry = self._entry(name)
        if entry.state not in (ModelState.SLEEPING, ModelState.WAKING):
            return self.find(name)
        if self._waiting >= self._most_waiting:
            raise QueueFull(f"{self._waiting} requests wait for models to wake up", code="too_many_wait_for_models")
        self._waiting += 1
        try:
            return self._awake(name, connected)
        finally:
            self._waiting -= 1

    def _entry(self, name: str) -> RegisteredModel:
        entry = self._models.get(name) if self._models else None
        if entry is None or entry.state not in RUNNING or name not in self._held:
            entry = (self.models or {}).get(name)
        if entry is None or entry.state is ModelState.UNLOADING:
            raise ModelNotFound(f"Model or workflow not found: {name[:200]}")
        return entry

    def wait_serving(self, name: str) -> None:
        """Return once this worker may send requests to a model that has just been loaded, or after some seconds."""
        deadline = time.monotonic() + _CONNECTING
        while time.monotonic() < deadline:
            self._refresh()
            if (held := self._held.get(name)) is not None and held.app.model.state is EngineState.READY:
                return
            time.sleep(_WAIT_INTERVAL)

    def ask(self, command: Command) -> None:
        """Ask the manager for a change, and wait for it. Raises the error with which it was refused."""
        ask(self.runtime_dir, command)
        self._refresh()

    def _awake(self, name: str, connected: Callable[[], bool]) -> HeldModel:
        deadline = time.monotonic() + self.predict_timeout
        refusal: str | None = None
        while time.monotonic() < deadline and connected():
            if self._ends:
                raise EngineNotReady("the server is shutting down", code="shutting_down")
            if self._entry(name).state is ModelState.SLEEPING:  # perhaps again, because others needed its room
                refusal = self._wake(name)
                if refusal is not None:
                    time.sleep(_ROOM_INTERVAL)
                    continue
            elif not self._wakes(name):
                return self.find(name)
            refusal = None  # it has got room, by this request or another one
            self._awaited.setdefault(name, threading.Event()).wait(_CONNECTED_INTERVAL)
        if refusal is not None:
            raise NoRoomYet(refusal)
        raise EngineNotReady(f"model {name} did not wake up within {self.predict_timeout:g} s")

    def _wake(self, name: str) -> str | None:
        """Ask the manager to wake a model, for all requests that wait for it. Returns why there is no room yet, or None."""
        asked, refusal = self._no_room.get(name, (-math.inf, None))
        if refusal is not None and time.monotonic() < asked + _ROOM_INTERVAL:
            return refusal
        try:
            self.ask(Wake(name))
        except NoRoomYet as error:
            self._no_room[name] = (time.monotonic(), str(error))
            return str(error)
        self._no_room.pop(name, None)
        return None

    def _wakes(self, name: str) -> bool:
        entry, held = (self._models or {}).get(name), self._held.get(name)
        if self._ends or entry is None or entry.state not in RUNNING or entry.number in self._failures:
            return False
        return held is None or held.app.model.state is not EngineState.READY

    def _tell_waiting(self) -> None:
        """Let the requests go on whose models do not wake up any more."""
        for name in list(self._awaited):
            if not self._wakes(name):
                self._awaited.pop(name).set()

    # The worker's end

    def use_threads(self, run_beside: RunBeside) -> None:
        """Run long work of all models with `run_beside`."""
        self._run_beside = run_beside
        for held in self.held:
            held.app.use_threads(run_beside)

    def start_draining(self) -> None:
        """Make `/ping` report that the worker is shutting down."""
        self.draining = True

    def end_draining(self) -> None:
        """Fail all requests that are still in flight."""
        self._ends = True
        self._tell_waiting()
        for held in (*self.held, *self._retired):
            held.app.model.end_draining()

    # Following the manager

    def _follow(self) -> None:
        while True:
            time.sleep(_FOLLOW_INTERVAL)
            try:
                self._refresh()
                self._tell_waiting()
                self._close_retired()
                for held in (*self.held, *self._retired):
                    held.touch()
            except Exception:
                logger.exception("the models could not be followed")

    def _refresh(self) -> None:
        """Read the models if they have changed, and make or retire applications accordingly."""
        with self._lock:
            try:
                status = models_file(self.runtime_dir).stat()
            except FileNotFoundError:
                return
            seen = status.st_ino, status.st_mtime_ns
            if seen == self._seen:
                return
            self._models, self._seen = read_models(self.runtime_dir), seen
            models = self._models or {}
            for name, held in list(self._held.items()):
                entry = models.get(name)
                if entry is None or entry.state not in RUNNING or entry.number != held.entry.number:
                    self._retired.append(self._held.pop(name))
            for entry in models.values():
                if entry.state in RUNNING and entry.name not in self._held and entry.number not in self._failures:
                    self._add(entry)

    def _add(self, entry: RegisteredModel) -> None:
        runtime_dir = model_runtime_dir(self.runtime_dir, entry.number)
        if not runtime_dir.is_dir():  # the number is that from before the model fell asleep: it will get another
            return
        try:
            app = self._make(runtime_dir)
            held = hold_model(entry, runtime_dir, app)
        except (LMIError, OSError) as error:
            logger.exception("a model cannot be served by this worker", extra={"model": entry.name})
            self._failures[entry.number] = str(error)
            return
        if self._run_beside is not None:
            app.use_threads(self._run_beside)
        self._held[entry.name] = held

    def _close_retired(self) -> None:
        ended = [held for held in self._retired if not held.in_flight]
        for held in ended:
            self._retired.remove(held)
            held.close()
        if ended:
            gc.collect()  # tokenizers and applications are large, and refer to themselves
