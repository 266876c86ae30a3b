"""Loads, unloads, wakes and puts to sleep the models of a server. Runs in a process of its own."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError, LMIError, LoadFailed, NoRoomYet
from lmi_handlers.core.files import write_whole
from lmi_handlers.core.log import tell
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.models.command_socket import answer
from lmi_handlers.models.messages import Command, Load, Scale, Unload, Wake
from lmi_handlers.models.processes import ModelProcesses
from lmi_handlers.models.registry import (
    ModelState,
    RegisteredModel,
    check_model_name,
    configuration_file,
    manager_socket,
    model_runtime_dir,
    models_file,
    users_file,
)
from lmi_handlers.models.room import Room
from lmi_handlers.models.settings import ManagerSettings
from lmi_handlers.models.slots import Slot, Slots
from lmi_handlers.models.source import models_at_start, opened
from lmi_handlers.telemetry.publisher import close_publishers
from lmi_handlers.workers.back_off import back_off
from lmi_handlers.workers.host import accepted, listen

_LOOK_INTERVAL = 0.05
_IDLE_INTERVAL = 0.5
_FIRST_BACK_OFF = 1.0
_LONGEST_BACK_OFF = 60.0
"""Seconds until a model that could not be woken is tried again."""

logger = logging.getLogger(__name__)


class Plan(msgspec.Struct, frozen=True):
    """A plan for loading a model. It takes about `memory` bytes, of which `free()` are free; None if unknown.

    `configuration` is what web workers read from its `configuration_file`. `warnings` are for the operator.
    """

    engine: EngineSettings
    configuration: bytes
    memory: int
    free: Callable[[], int | None]
    warnings: tuple[str, ...]


Planner = Callable[[RegisteredModel, Path], Plan]
"""Reads and checks the configuration of a model, which gets the runtime directory. Raises `ConfigError`."""


class Manager:
    """All models. Commands may come from several threads."""

    def __init__(self, settings: ManagerSettings, plan: Planner) -> None:
        self._settings = settings
        self._runtime_dir = Path(settings.runtime_dir)
        self._plan = plan
        self._slots = Slots(self._runtime_dir)
        self._room = Room(self._slots, settings.store.max_loaded_models, self._sleep)
        self._numbers = itertools.count(1)
        self._listens = False

    # Life cycle

    def run(self) -> None:
        """Load the models that are served from the start, and carry out commands for ever."""
        with listen(manager_socket(self._runtime_dir)) as listener:
            entries = [
                RegisteredModel(name=name, url=url, at_start=True, since=time.time())
                for name, url in models_at_start(self._settings.store)
            ]
            threading.Thread(target=self._load_first, args=(self._slots.begin(entries),), daemon=True).start()
            self._listens = True
            threading.Thread(target=self._watch_idle, daemon=True).start()
            for sock in accepted(listener):
                threading.Thread(target=answer, args=(sock, self._carry_out), daemon=True).start()

    def kill(self) -> None:
        """End all engines at once and publish the last metrics, because this process exits."""
        running = [slot.processes for slot in self._slots.all() if slot.processes is not None]
        for processes in running:
            processes.kill()
        close_publishers(publisher for processes in running for publisher in processes.publishers)

    def needed(self) -> Iterator[Path]:
        """Yield the files that must be there at the moment."""
        if not self._listens:
            return
        yield from (manager_socket(self._runtime_dir), models_file(self._runtime_dir))
        for slot in self._slots.all():
            processes = slot.processes
            if processes is not None and slot.entry.state is ModelState.READY:
                runtime_dir = Path(processes.settings.runtime_dir)
                yield from (users_file(runtime_dir), configuration_file(runtime_dir))
                yield from processes.needed()

    # Commands

    def _carry_out(self, command: Command) -> None:
        match command:
            case Load():
                self.load(command)
            case Unload(name):
                self.unload(name)
            case Wake(name):
                self.wake(name)
            case Scale(name, options):
                self.scale(name, options)

    def load(self, command: Load) -> None:
        """Load a model. Raises the error for which it could not be loaded; then nothing of it is left."""
        check_model_name(command.name)
        entry = RegisteredModel(name=command.name, url=command.url, options=command.options, since=time.time())
        slot, before = self._slots.add(entry)
        if before is not None:
            self._clean_up(before)
        if not command.waits:
            threading.Thread(target=self._load_or_fail, args=(slot,), daemon=True).start()
            return
        try:
            self._load(slot)
        except LMIError:
            self._slots.forget(slot)
            raise

    def unload(self, name: str) -> None:
        """Unload a model once its requests in flight have ended. Raises `ModelNotFound`.

        A model whose files are being fetched is forgotten at once. Whoever fetches them notices.
        """
        slot, was = self._slots.begin_unloading(name)
        if was is not ModelState.PENDING:
            try:
                if was in (ModelState.LOADING, ModelState.WAKING) and (processes := slot.processes) is not None:
                    processes.stop()  # whoever waits for them notices
                with slot.changing:
                    self._end(slot)
            finally:
                self._slots.forget(slot)
        logger.info("model unloaded", extra={"model": name})

    def wake(self, name: str) -> None:
        """Begin to start the engines of a model that sleeps.

        Raises `ModelNotFound`, `InsufficientMemory`, `ConfigError`, and `LoadFailed`, also for some time after a start
        that has failed. After `NoRoomYet`, whoever asks again keeps its place among the models that wait for room.
        """
        slot = self._slots.known(name)
        while not slot.changing.acquire(timeout=_LOOK_INTERVAL):  # it may still be falling asleep
            if slot.entry.state is not ModelState.SLEEPING:
                return
        try:
            if slot.entry.state is not ModelState.SLEEPING:
                return
            if time.monotonic() < slot.retry_at:
                raise LoadFailed(slot.entry.cause)
            self._room.check_turn(slot)
            try:
                self._prepare(slot, *self._planned(slot, slot.entry.options), ModelState.WAKING)
                threading.Thread(target=self._wake_up, args=(slot,), daemon=True).start()
            except NoRoomYet:
                raise
            except Exception as error:
                raise self._not_awake(slot, error) from error
        finally:
            slot.changing.release()

    def scale(self, name: str, options: dict[str, str] | None) -> None:
        """Start a model's engines again with other options, if that changes anything. With None, put it to sleep.

        If that fails, it sleeps, and has the options that it had. Raises `ModelNotFound`, `EngineNotReady` unless it
        serves or sleeps, and the errors of a load.
        """
        slot = self._slots.known(name)
        slot.check_loaded()  # do not wait until it has been loaded
        with slot.changing:
            slot.check_loaded()
            if options is None:
                self._fall_asleep(slot)
            elif options:
                self._restart(slot, slot.entry.options | options)

    # Starting

    def _load_first(self, slots: list[Slot]) -> None:
        """Load models one by one, so that each one's memory is taken before the next one's is checked."""
        for slot in slots:
            self._load_or_fail(slot)

    def _load_or_fail(self, slot: Slot) -> None:
        """Load a model that nobody waits for. If that fails, it stays, and says why. Without room, it sleeps."""
        try:
            self._load(slot)
        except NoRoomYet as error:
            if not self._slots.change(slot, ModelState.SLEEPING, cause=str(error)):
                slot.files.close()  # it has been unloaded
        except Exception as error:  # noqa: BLE001  the models after it are loaded anyway
            self._fail(slot, error)

    def _load(self, slot: Slot) -> None:
        """Load a model, and wait until it serves. Raises the `LMIError` for which that failed."""
        with slot.changing:
            try:
                slot.check_wanted()
                self._prepare(slot, *self._planned(slot, slot.entry.options), ModelState.LOADING)
                self._start(slot)
            except Exception as error:
                raise self._not_started(slot, error) from error

    def _wake_up(self, slot: Slot) -> None:
        """Start the engines of a model that has been prepared."""
        with slot.changing:
            try:
                self._start(slot)
            except Exception as error:  # noqa: BLE001  the model's state says why
                self._not_awake(slot, error)

    def _restart(self, slot: Slot, options: dict[str, str]) -> None:
        """Start a model's engines with other options. The caller holds `changing`."""
        entry, plan = self._planned(slot, options)
        if slot.processes is not None and slot.processes.settings.properties == plan.engine.properties:
            return
        before = slot.entry.options
        self._fall_asleep(slot)
        slot.check_loaded()
        try:
            self._prepare(slot, entry, plan, ModelState.WAKING)
            self._start(slot)
        except Exception as error:
            cause = self._not_started(slot, error)
            entry = msgspec.structs.replace(slot.entry, options=before)
            self._slots.change(slot, ModelState.SLEEPING, cause=str(cause), entry=entry)
            raise cause from error

    def _start(self, slot: Slot) -> None:
        """Start the engines that have been prepared, and wait until they serve. The caller holds `changing`.

        Raises the cause if that fails.
        """
        slot.check_wanted()
        processes = slot.processes
        assert processes is not None  # noqa: S101  `_prepare` has made them
        processes.start()
        if not processes.wait_serving() and processes.failure is not None:
            raise processes.failure
        self._slots.advance(slot, ModelState.READY)
        slot.failures = 0
        logger.info("model loaded", extra={"model": slot.entry.name, "url": slot.entry.url})

    def _not_started(self, slot: Slot, error: Exception) -> LMIError:
        """Drop what is left of a start that has failed, and return the error to raise. The caller holds `changing`."""
        name = slot.entry.name
        self._end(slot)
        logger.error("model not loaded", extra={"model": name, "cause": str(error)})
        return error if isinstance(error, LMIError) else LoadFailed(f"model {name} could not be loaded: {error}")

    def _not_awake(self, slot: Slot, error: Exception) -> LMIError:
        """Put a model that could not be woken back to sleep, or mark it as failed if it never can be. Returns the cause.

        The caller holds `changing`.
        """
        cause = self._not_started(slot, error)
        if isinstance(cause, ConfigError):
            self._fail(slot, cause)
            return cause
        if isinstance(cause, LoadFailed):
            slot.failures += 1
            delay = back_off(slot.failures, first=_FIRST_BACK_OFF, longest=_LONGEST_BACK_OFF)
            slot.retry_at = time.monotonic() + delay
        self._slots.change(slot, ModelState.SLEEPING, cause=str(cause))
        return cause

    def _fail(self, slot: Slot, error: Exception) -> None:
        self._slots.change(slot, ModelState.FAILED, cause=str(error))
        slot.files.close()

    def _planned(self, slot: Slot, options: dict[str, str]) -> tuple[RegisteredModel, Plan]:
        """Get the files of a model, and check its configuration. Raises the error that prevents that."""
        entry = msgspec.structs.replace(slot.entry, options=options, number=next(self._numbers))
        if not slot.directory:  # kept also if there is no room: a model that waits for it is tried twice a second
            source = opened(entry.url, self._settings.store, is_operators=entry.at_start)
            slot.directory = str(slot.files.enter_context(source))
        entry = msgspec.structs.replace(entry, directory=slot.directory)
        plan = self._plan(entry, model_runtime_dir(self._runtime_dir, entry.number))
        names = plan.engine.properties.served_names
        return msgspec.structs.replace(entry, memory=plan.memory, names=names), plan

    def _prepare(self, slot: Slot, planned: RegisteredModel, plan: Plan, state: ModelState) -> None:
        """Make room for a model, make its runtime directory, and tell the web workers. The caller holds `changing`.

        Raises the error that prevents that. Then `_end` drops what there is.
        """
        self._room.take(slot, plan.memory, plan.free)
        for warning in plan.warnings:  # not before: a model that waits for room is tried twice a second
            tell("warning", warning)
        slot.processes = ModelProcesses(plan.engine, lambda failed: self._failed(slot, failed))
        slot.idle_timeout = plan.engine.properties.idle_timeout
        runtime_dir = Path(plan.engine.runtime_dir)
        runtime_dir.mkdir(mode=0o700)
        users_file(runtime_dir).touch(mode=0o600)
        write_whole(configuration_file(runtime_dir), plan.configuration)
        self._slots.advance(slot, state, entry=planned)

    # Ending

    def _sleep(self, slot: Slot) -> bool:
        """Put a model that serves to sleep. Returns False for others."""
        if not slot.changing.acquire(blocking=False):
            return False
        try:
            return self._fall_asleep(slot)
        finally:
            slot.changing.release()

    def _fall_asleep(self, slot: Slot) -> bool:
        """End the engines of a model that serves, once its requests in flight have ended. Returns False for others.

        The caller holds `changing`.
        """
        if not self._slots.change(slot, ModelState.SLEEPING, only_from=ModelState.READY):
            return False
        self._end(slot)
        return True

    def _end(self, slot: Slot) -> None:
        """End a model's processes once its requests in flight have ended, or after `drain_seconds`."""
        processes, slot.processes = slot.processes, None
        try:
            if processes is not None:
                self._drain_and_stop(processes)
        finally:
            slot.room = None

    def _drain_and_stop(self, processes: ModelProcesses) -> None:
        runtime_dir = Path(processes.settings.runtime_dir)
        deadline = time.monotonic() + self._settings.drain_seconds
        try:
            if processes.failure is None:
                while _in_use(users_file(runtime_dir)) and time.monotonic() < deadline:
                    time.sleep(_LOOK_INTERVAL)
            processes.stop()
        finally:
            shutil.rmtree(runtime_dir, ignore_errors=True)

    def _failed(self, slot: Slot, processes: ModelProcesses) -> None:
        """Called when all engines of a model have given up. If it was being loaded, whoever waits for that notices."""
        with self._slots.lock:
            if slot.processes is not processes or not self._slots.change(
                slot, ModelState.FAILED, only_from=ModelState.READY, cause=str(processes.failure)
            ):
                return
        threading.Thread(target=self._clean_up, args=(slot,), daemon=True).start()

    def _clean_up(self, slot: Slot) -> None:
        """Drop what is left of a model that has failed."""
        with slot.changing:
            self._end(slot)
            slot.files.close()

    # Idle models

    def _watch_idle(self) -> None:
        while True:
            time.sleep(_IDLE_INTERVAL)
            self._slots.publish_missed()
            for slot in self._slots.all():
                idle = self._slots.idle_seconds(slot) if slot.idle_timeout is not None else None
                if idle is not None and slot.idle_timeout is not None and idle >= slot.idle_timeout:
                    threading.Thread(target=self._sleep, args=(slot,), daemon=True).start()


def _in_use(users: Path) -> bool:
    """Tell whether a web worker may still send requests."""
    try:
        descriptor = os.open(users, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
