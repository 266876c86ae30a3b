"""The models of the manager, with what it alone knows of each. What web workers may know is in a file that they follow."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lmi_handlers.core.errors import EngineNotReady, InsufficientMemory, ModelExists, ModelNotFound
from lmi_handlers.models.registry import ModelState, RegisteredModel, model_runtime_dir, users_file, write_models

if TYPE_CHECKING:
    from lmi_handlers.models.processes import ModelProcesses

MAX_MODELS = 1000

logger = logging.getLogger(__name__)


class Slot:
    """A model in the manager. Whoever starts or ends its processes holds `changing`."""

    def __init__(self, entry: RegisteredModel) -> None:
        self.entry = entry
        self.changing = threading.Lock()
        self.processes: ModelProcesses | None = None
        self.files = contextlib.ExitStack()
        self.directory = ""
        """Where its files are, once they have been fetched. They stay there until `files` is closed."""
        self.idle_timeout: int | None = None
        self.failures = 0
        self.retry_at = 0.0
        """When a model that could not be woken may be tried again, on the monotonic clock."""
        self.room: int | None = None
        """Bytes of memory that it has been promised or has taken. None if it has no engines."""

    def check_wanted(self) -> None:
        """Raise `ModelNotFound` if it is being unloaded."""
        if self.entry.state is ModelState.UNLOADING:
            raise ModelNotFound(f"model {self.entry.name} was unloaded before it had been loaded")

    def check_loaded(self) -> None:
        """Raise `EngineNotReady` unless it serves or sleeps."""
        if self.entry.state not in (ModelState.READY, ModelState.SLEEPING):
            raise EngineNotReady(f"Model or workflow is not ready: {self.entry.name}")


class Slots:
    """All models by name, in order of arrival. Every change is published."""

    def __init__(self, runtime_dir: Path) -> None:
        self.lock = threading.RLock()
        """Guards the entries and the file with them."""
        self._runtime_dir = runtime_dir
        self._by_name: dict[str, Slot] = {}
        self._missed = False

    def all(self) -> list[Slot]:
        """Return a snapshot of the models."""
        with self.lock:
            return list(self._by_name.values())

    def known(self, name: str) -> Slot:
        """Return a model. Raises `ModelNotFound`."""
        slot = self._by_name.get(name)
        if slot is None:
            raise ModelNotFound(f"Model or workflow not found: {name[:128]}")
        return slot

    def begin(self, entries: Iterable[RegisteredModel]) -> list[Slot]:
        """Add the models that are served from the start, and return them."""
        with self.lock:
            for entry in entries:
                self._by_name.setdefault(entry.name, Slot(entry))
            self._publish()
            return self.all()

    def add(self, entry: RegisteredModel) -> tuple[Slot, Slot | None]:
        """Add a model. Returns it and the one of that name that had failed, if any.

        Raises `ModelExists` and `InsufficientMemory`.
        """
        slot = Slot(entry)
        with self.lock:
            before = self._by_name.get(entry.name)
            if before is not None and before.entry.state is not ModelState.FAILED:
                raise ModelExists(f"Model {entry.name} is already registered.")
            if before is None and len(self._by_name) >= MAX_MODELS:
                raise InsufficientMemory(f"a server has at most {MAX_MODELS} models", code="too_many_models")
            self._by_name[entry.name] = slot
            self._publish()
        return slot, before

    def begin_unloading(self, name: str) -> tuple[Slot, ModelState]:
        """Let a model be UNLOADING, which no other state follows. Returns it and its state before.

        One whose files are being fetched makes way for another of its name at once. Raises `ModelNotFound`.
        """
        with self.lock:
            slot = self._by_name.get(name)
            if slot is None or slot.entry.state is ModelState.UNLOADING:
                raise ModelNotFound(f"Model or workflow not found: {name}")
            was = slot.entry.state
            if was is ModelState.PENDING:
                del self._by_name[name]
            self.change(slot, ModelState.UNLOADING)
        return slot, was

    def change(
        self,
        slot: Slot,
        state: ModelState,
        *,
        only_from: ModelState | None = None,
        cause: str = "",
        entry: RegisteredModel | None = None,
    ) -> bool:
        """Change the state of a model, and with `entry`, what else is known of it.

        Returns False, and changes nothing, if it is being unloaded, or is not in the state `only_from`.
        """
        with self.lock:
            now = slot.entry.state
            if now is ModelState.UNLOADING or only_from not in (None, now):
                return False
            slot.entry = msgspec.structs.replace(entry or slot.entry, state=state, since=time.time(), cause=cause)
            self._publish()
            return True

    def advance(self, slot: Slot, state: ModelState, *, entry: RegisteredModel | None = None) -> None:
        """Change the state of a model that is being started. Raises `ModelNotFound` if it is being unloaded."""
        if not self.change(slot, state, entry=entry):
            slot.check_wanted()

    def forget(self, slot: Slot) -> None:
        """Drop a model, and its files."""
        with self.lock:
            if self._by_name.get(slot.entry.name) is slot:
                del self._by_name[slot.entry.name]
            self._publish()
        slot.files.close()

    def idle_seconds(self, slot: Slot) -> float | None:
        """Return for how long a model that serves has had no request. None for others."""
        entry = slot.entry
        if entry.state is not ModelState.READY:
            return None
        try:
            used = users_file(model_runtime_dir(self._runtime_dir, entry.number)).stat().st_mtime
        except OSError:
            return None
        return time.time() - max(used, entry.since)

    def publish_missed(self) -> None:
        """Publish changes that could not be published before, for example for lack of disk space."""
        with self.lock:
            if self._missed:
                self._publish()

    def _publish(self) -> None:
        """Tell the web workers. If that fails, what was begun goes on, and they hear of it later."""
        try:
            write_models(self._runtime_dir, {name: slot.entry for name, slot in self._by_name.items()})
        except OSError as error:
            if not self._missed:
                logger.error("web workers cannot be told of the models yet", extra={"cause": str(error)})
            self._missed = True
        else:
            self._missed = False
