"""Which models make room for another one, without any engine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from facts import raises

from lmi_handlers.core.errors import InsufficientMemory, NoRoomYet
from lmi_handlers.models.registry import ModelState, RegisteredModel, model_runtime_dir, users_file
from lmi_handlers.models.room import Room
from lmi_handlers.models.slots import Slot, Slots


class Store:
    """Models `a` and `b`, which take 10 bytes each and have been idle for long, `a` longest, and `c`, which asks for room."""

    def __init__(self, folder: Path) -> None:
        self.slots = Slots(folder)
        entries = [RegisteredModel(name=name, url=name, number=number) for number, name in enumerate("abc")]
        self.a, self.b, self.c = self.slots.begin(entries)
        self.free = 5
        self.asleep: list[str] = []
        for slot in (self.a, self.b):
            slot.entry = msgspec.structs.replace(slot.entry, state=ModelState.READY)
            slot.room = 10
            file = users_file(model_runtime_dir(folder, slot.entry.number))
            file.parent.mkdir()
            file.touch()
            os.utime(file, (slot.entry.number, slot.entry.number))
        self.room = Room(self.slots, 2, self.sleep)

    def sleep(self, slot: Slot) -> bool:
        if not self.slots.change(slot, ModelState.SLEEPING, only_from=ModelState.READY):
            return False
        self.free += slot.room or 0
        slot.room = None
        self.asleep.append(slot.entry.name)
        return True

    def take(self, memory: int) -> None:
        self.room.take(self.c, memory, lambda: self.free)


@pytest.mark.parametrize(("memory", "asleep"), [(5, ["a"]), (15, ["a"]), (25, ["a", "b"])])
def test_no_more_models_fall_asleep_than_must(tmp_path: Path, memory: int, asleep: list[str]) -> None:
    store = Store(tmp_path)
    store.take(memory)
    assert (store.asleep, store.c.room) == (asleep, memory)


def test_none_falls_asleep_for_a_model_that_never_fits(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with raises(InsufficientMemory, "c 26 5 free") as refused:
        store.take(26)
    assert not isinstance(refused.value, NoRoomYet)
    assert store.asleep == []
