"""Room for models: whoever starts engines asks for their memory first, and models without requests make way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lmi_handlers.core.errors import InsufficientMemory, NoRoomYet
from lmi_handlers.models.registry import ModelState
from lmi_handlers.models.slots import Slot, Slots

_IDLE = 1.0
"""Seconds without a request after which a model may make room for others."""

_SOON = 2.0
"""Seconds within which a model that has just been used, and is no longer in use, becomes idle."""

_LOOK_INTERVAL = 0.05
_ALL_LEAVE = 30.0
"""Seconds in which models that are on their way out have gone: requests in flight may take 23 of them."""

_STILL_ASKS = 5.0
"""A model stops waiting for room once no web worker has asked for it for this many seconds."""

_LEAVING = (ModelState.SLEEPING, ModelState.UNLOADING, ModelState.FAILED)

logger = logging.getLogger(__name__)


class Room:
    """At most `limit` models have engines, and no more than fit into memory. `sleep` puts a model to sleep, if it can."""

    def __init__(self, slots: Slots, limit: int | None, sleep: Callable[[Slot], bool]) -> None:
        self._slots = slots
        self._limit = limit
        self._sleep = sleep
        self._lock = threading.Lock()
        self._queue = _Queue()

    def take(self, slot: Slot, memory: int, free: Callable[[], int | None]) -> None:
        """Take `memory` bytes for a model, of `free()`, if that is known.

        Models without requests are put to sleep for it, the least recently used one first. Those that are being ended
        are waited for, and those that have just been used for a moment. Raises `NoRoomYet` if others are in use,
        `InsufficientMemory` if it does not help to wait.
        """
        with self._lock:
            started = time.monotonic()
            while (refusal := self._refusal(slot, memory, free())) is not None:
                may_wait = isinstance(refusal, NoRoomYet)
                if may_wait and self._sleep_least_recently_used(slot):
                    continue
                waited = time.monotonic() - started
                if waited > (_ALL_LEAVE if self._are_leaving(slot) else _SOON if may_wait else 0.0):
                    raise refusal
                time.sleep(_LOOK_INTERVAL)
            slot.room = memory
            self._queue.leave(slot)

    def check_turn(self, slot: Slot) -> None:
        """Note that a model waits for room. Raises `NoRoomYet` unless it is one of the next for which there is some.

        This takes no time, so it may be asked again and again. Whoever began to ask first is first.
        """
        if self._limit is None:
            return
        ahead = self._queue.join(slot)
        has_engines = [other for other in self._slots.all() if other is not slot and other.room is not None]
        idle = sum((self._slots.idle_seconds(other) or 0.0) >= _IDLE for other in has_engines)
        if ahead >= self._limit - len(has_engines) + idle:
            raise NoRoomYet(self._full(len(has_engines)))

    def _refusal(self, slot: Slot, memory: int, free: int | None) -> InsufficientMemory | None:
        """Return why there is no room for a model at the moment, or None. `slot.room` of the others is what they have."""
        others = [other for other in self._slots.all() if other is not slot and other.room is not None]
        has = cause = None
        if free is not None:
            promised = sum(other.room or 0 for other in others if other.entry.state is not ModelState.READY)
            has = max(0, free - promised)
            cause = f"model {slot.entry.name} needs about {memory:,} bytes of memory, but {has:,} are free"
            if memory > has + (0 if self._limit is None else sum(other.room or 0 for other in others)):
                return InsufficientMemory(cause)  # no other model would make room enough
        if self._limit is not None and len(others) >= self._limit:
            return NoRoomYet(self._full(len(others)))
        return None if has is None or cause is None or memory <= has else NoRoomYet(cause)

    def _full(self, loaded: int) -> str:
        return f"{loaded} models are loaded and in use, and at most {self._limit} may be (LMI_MAX_LOADED_MODELS)"

    def _are_leaving(self, asking: Slot) -> bool:
        return any(
            slot.room is not None and slot.entry.state in _LEAVING for slot in self._slots.all() if slot is not asking
        )

    def _sleep_least_recently_used(self, asking: Slot) -> bool:
        """Put the model to sleep that has had no request for longest. Returns False if all are in use."""
        slots = [slot for slot in self._slots.all() if slot is not asking]
        idle = {slot: seconds for slot in slots if (seconds := self._slots.idle_seconds(slot)) is not None}
        for slot in sorted(idle, key=idle.__getitem__, reverse=True):
            if idle[slot] >= _IDLE and self._sleep(slot):
                logger.info("model sleeps to make room", extra={"model": slot.entry.name, "for": asking.entry.name})
                return True
        return False


class _Queue:
    """The models that wait for room, in order of arrival. One that nobody asks for any more drops out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[Slot, float] = {}
        """When each was asked for last, on the monotonic clock."""

    def join(self, slot: Slot) -> int:
        """Add a model, unless it waits already. Returns how many are before it."""
        now = time.monotonic()
        with self._lock:
            self._asked = {other: asked for other, asked in self._asked.items() if now - asked < _STILL_ASKS}
            self._asked[slot] = now  # keeps its place
            return list(self._asked).index(slot)

    def leave(self, slot: Slot) -> None:
        with self._lock:
            self._asked.pop(slot, None)
