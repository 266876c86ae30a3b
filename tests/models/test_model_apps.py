"""Requests for a model that sleeps, with a manager that only answers."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from facts import raises

from lmi_handlers.core.errors import EngineNotReady, NoRoomYet
from lmi_handlers.models.command_socket import answer
from lmi_handlers.models.held_model import HeldApp
from lmi_handlers.models.messages import Command
from lmi_handlers.models.model_apps import ModelApps
from lmi_handlers.models.registry import ModelState, RegisteredModel, manager_socket, write_models


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="apps-") as folder:
        yield Path(folder)


def make(runtime_dir: Path) -> HeldApp:
    raise AssertionError


def test_a_name_of_a_model_goes_before_another_name_of_one(runtime_dir: Path) -> None:
    names = {"a": ("a", "chat", "b"), "b": ("b", "chat", "code")}
    write_models(runtime_dir, {name: RegisteredModel(name=name, url=name, names=names[name]) for name in names})
    apps = ModelApps(runtime_dir, make, patience=300, most_waiting=1)
    assert [apps.called(name) for name in ("a", "b", "chat", "code", "x")] == ["a", "b", "a", "b", None]


def test_a_model_that_got_room_and_does_not_wake_up_is_not_short_of_room(runtime_dir: Path) -> None:
    model = RegisteredModel(name="a", url="a", state=ModelState.SLEEPING)
    write_models(runtime_dir, {"a": model})

    def refuse(command: Command) -> None:
        """Another request is first, and gets the room."""
        write_models(runtime_dir, {"a": RegisteredModel(name="a", url="a", state=ModelState.WAKING)})
        raise NoRoomYet("2 models are loaded and in use")

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(manager_socket(runtime_dir)))
        listener.listen()
        threading.Thread(target=lambda: answer(listener.accept()[0], refuse), daemon=True).start()
        apps = ModelApps(runtime_dir, make, patience=300, most_waiting=1)
        connected = iter((True, True, False))  # it is refused, then it waits, then its client leaves
        with raises(EngineNotReady, "a not wake 300"):
            apps.find_awake("a", lambda: next(connected))
