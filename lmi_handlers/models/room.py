"""Room for models: whoever starts engines asks for their memory first, and models without requests make way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lmi_handlers.core.errors import InsufficientMemory
from lmi_handlers.models.registry import ModelState
from lmi_handlers.models.slots import Slot, Slots

_IDLE = 1.0
"""A model without requests for so many seconds may make room for others."""

logger = logging.getLogger(__name__)


class Room:
    """At most `limit` models have engines, and no more than fit into memory. `sleep` puts a model to sleep, if it can."""

    def __init__(self, slots: Slots, limit: int | None, sleep: Callable[[Slot], bool]) -> None:
        self._slots = slots
        self._limit = limit
        self._sleep = sleep
        self._lock = threading.Lock()

    def take(self, slot: Slot, memory: int, free: Callable[[], int | None]) -> None:
        """Take `memory` bytes for a model, of `free()`, if that is known. Raises `InsufficientMemory`.

        Models without requests are put to sleep for it, the least recently used one first.
        """
        with self._lock:
            while True:
                others = [other for other in self._slots.all() if other is not slot and other.room is not None]
                loaded = len(others)
                promised = sum(other.room or 0 for other in others if other.entry.state is not ModelState.READY)
                limit = self._limit
                if limit is not None and loaded >= limit:
                    cause = f"{loaded} models are loaded and in use, and at most {limit} may be (LMI_MAX_LOADED_MODELS)"
                else:
                    has = free()
                    has = None if has is None else max(0, has - promised)
                    if has is None or memory <= has:
                        slot.room = memory
                        return
                    cause = f"model {slot.entry.name} needs about {memory:,} bytes of memory, but {has:,} are free"
                if limit is None or not self._sleep_least_recently_used(slot):
                    raise InsufficientMemory(cause)

    def _sleep_least_recently_used(self, asking: Slot) -> bool:
        """Put the model to sleep that has had no request for longest. Returns False if all are in use."""
        slots = [slot for slot in self._slots.all() if slot is not asking]
        idle = {slot: seconds for slot in slots if (seconds := self._slots.idle_seconds(slot)) is not None}
        for slot in sorted(idle, key=idle.__getitem__, reverse=True):
            if idle[slot] >= _IDLE and self._sleep(slot):
                logger.info("model sleeps to make room", extra={"model": slot.entry.name, "for": asking.entry.name})
                return True
        return False
