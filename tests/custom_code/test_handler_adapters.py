"""A model's own code that loads adapters itself: the functions that DJL calls are called, in every process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from facts import raises, says
from serving import Server
from waiting import wait_until

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.custom_code.adapter_functions import adapter_function
from lmi_handlers.custom_code.adapters import model_folder
from lmi_handlers.custom_code.messages import Batch
from lmi_handlers.custom_code.once import load_once
from lmi_handlers.custom_code.runner import CodeError
from lmi_handlers.preflight.configuration import read_configuration

HANDLER = """
import os
from djl_python import Input, Output

adapters = {}


def load(inputs: Input):
    name = inputs.get_property("name")
    if inputs.contains_key("oom"):
        raise MemoryError("no slot is free")
    if inputs.contains_key("refuse"):
        return Output().error("register_adapter_error", code=409, message="not " + inputs.get_as_string("refuse"))
    if not os.path.exists(os.path.join(inputs.get_properties()["src"], "weights")):
        raise ValueError(f"{name} has no weights")
    options = {key: inputs.get_as_string(key) for key in inputs.get_content().get_keys()}
    adapters[name] = {"src": inputs.get_property("src"), "options": options, "how": inputs.get_property("handler")}


def register_adapter(inputs: Input):
    return load(inputs) or Output(message=f"Adapter {inputs.get_property('name')} registered")


def update_adapter(inputs: Input):
    return load(inputs) or Output().add("Successfully updated adapter")


def unregister_adapter(inputs: Input):
    del adapters[inputs.get_property("name")]
    return Output().add("Successfully unregistered adapter")


def handle(inputs: Input):
    if inputs.is_empty():
        return None
    return Output().add_as_json({"pid": os.getpid(), "adapters": adapters})
"""

ONLY_REGISTERS = """
import asyncio
from djl_python import Input, Output

adapters = []


async def register_adapter(inputs: Input):
    await asyncio.sleep(0)
    adapters.append(inputs.get_property("name"))
    return Output().add("Successfully registered adapter")


async def handle(inputs: Input):
    if inputs.is_empty():
        return None
    return Output().add_as_json(adapters)
"""


class Adapters:
    """The routes for adapters of a server, and what its processes have loaded."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder

    def make(self, name: str) -> Path:
        """The folder of an adapter."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "weights").touch()
        return folder

    def ask(self, method: str, path: str = "", **fields: object) -> requests.Response:
        return requests.request(method, f"{self.server.url}/adapters{path}", params=fields, timeout=120)  # type: ignore[arg-type]  # any value

    def pool(self) -> psutil.Process | None:
        try:
            return self.server.supervised("lmi_handlers.custom_code.pool")
        except AssertionError:  # between two of them
            return None

    def names(self) -> list[str]:
        return [item["name"] for item in self.ask("GET").json()["adapters"]]

    def loaded(self) -> dict[str, Any]:
        """What has been loaded, which is the same in both processes."""
        found: dict[int, dict[str, Any]] = {}

        def both() -> bool:
            answer = self.server.invoke({}, headers={"handler": "unregister_adapter", "name": "own"})
            if answer.status_code == 200:
                found[answer.json()["pid"]] = answer.json()["adapters"]
            living = {process.pid for process in self.server.code_processes()}
            for ended in found.keys() - living:
                del found[ended]
            return len(found) == 2

        wait_until(both)
        one, other = found.values()
        assert one == other
        return one


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapters]:
    directory = tmp_path_factory.mktemp("code") / "m"
    (directory / "adapters" / "own").mkdir(parents=True)
    (directory / "adapters" / "own" / "weights").touch()
    (directory / "model.py").write_text(HANDLER)
    store = directory.parent / "store"
    store.mkdir()
    server = Server(directory, f"minWorkers=2\nmaxWorkers=2\noption.adapter_store={store}\n")
    yield Adapters(server.wait_ready(), store)
    server.stop()


def test_from_registration_to_removal(adapters: Adapters) -> None:
    folder = adapters.make("a1")
    answer = adapters.ask("POST", name="a1", src=folder, level=3)
    assert (answer.status_code, answer.text) == (200, "Adapter a1 registered")
    options = {"name": "a1", "src": str(folder), "level": "3"}
    assert adapters.loaded()["a1"] == {"src": str(folder), "options": options, "how": "register_adapter"}
    assert adapters.names() == ["own", "a1"]
    described = adapters.ask("GET", "/a1").json()
    assert (described["src"], described["pin"]) == (str(folder), False)

    assert adapters.ask("POST", name="a1", src=folder, level=3).status_code == 200  # a client that tries again
    assert adapters.ask("POST", name="a1", src=folder, level=4).status_code == 409

    body = requests.put(f"{adapters.server.url}/models/m/adapters/a1", json={"pin": True, "extra": [1]}, timeout=120)
    assert (body.status_code, body.text) == (200, "Adapter a1 updated")
    assert adapters.ask("GET", "/a1").json()["pin"] is True
    updated = {"src": str(folder), "options": {**options, "pin": "true", "extra": "[1]"}, "how": "update_adapter"}
    assert adapters.loaded()["a1"] == updated

    assert adapters.ask("DELETE", "/a1").text == "Adapter a1 unregistered"
    assert adapters.loaded().keys() == {"own"}
    assert adapters.names() == ["own"]


def test_what_the_code_refuses_is_an_error_with_its_reason(adapters: Adapters) -> None:
    folder = adapters.make("a2")
    empty = adapters.folder / "empty"
    empty.mkdir()
    for fields, status, reason in (
        ({"src": empty}, 424, "a2 has no weights"),
        ({"src": folder, "oom": 1}, 507, "no slot is free"),
        ({"src": folder, "refuse": "today"}, 409, "not today"),
        ({"src": folder, "option": "x" * 20_000}, 400, "the adapter's options must have at most"),
        ({"src": "/etc"}, 400, "'/etc' is outside of option.adapter_store"),
        ({"src": "https://example.com/a2"}, 400, "must be a folder or an archive of this machine"),
        ({}, 400, "src"),
    ):
        refused = requests.post(f"{adapters.server.url}/adapters", json={"name": "a2", **as_text(fields)}, timeout=120)
        assert (refused.status_code, refused.json()["code"]) == (status, status)
        assert reason in refused.json()["message"]
    assert adapters.ask("POST", "/none/update", pin=True).status_code == 404
    assert adapters.ask("DELETE", "/none").status_code == 404
    assert adapters.names() == ["own"]
    assert adapters.loaded().keys() == {"own"}


def as_text(fields: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


def test_processes_that_are_started_again_have_the_adapters(adapters: Adapters) -> None:
    kept, lost = adapters.make("kept"), adapters.make("lost")
    for folder in (kept, lost):
        assert adapters.ask("POST", name=folder.name, src=folder).status_code == 200
    before = adapters.loaded()
    killed = adapters.server.code_processes()[0]
    killed.kill()
    wait_until(lambda: killed not in adapters.server.code_processes())
    assert adapters.loaded() == before

    shutil.rmtree(lost)
    pool = adapters.server.supervised("lmi_handlers.custom_code.pool")
    pool.kill()
    wait_until(lambda: adapters.pool() not in (None, pool))
    adapters.server.wait_ready()
    assert adapters.loaded().keys() == {"own", "kept"}
    assert adapters.names() == ["own", "kept"]
    assert "adapter is no longer loaded" in adapters.server.log
    assert adapters.ask("DELETE", "/kept").status_code == 200


def test_an_asynchronous_handler_that_only_registers(tmp_path: Path) -> None:
    (tmp_path / "m" / "adapters" / "a1").mkdir(parents=True)
    (tmp_path / "m" / "model.py").write_text(ONLY_REGISTERS)
    (tmp_path / "m" / "a2").mkdir()
    server = Server(tmp_path / "m", "option.async_mode=true\nmaxWorkers=1\n")
    try:
        server.wait_ready()
        assert server.invoke([]).json() == ["a1"]
        adapters = Adapters(server, tmp_path / "m")
        assert adapters.ask("POST", name="a2", src="a2").status_code == 200
        assert server.invoke([]).json() == ["a1", "a2"]
        refused = adapters.ask("PUT", "/a2", pin=True)
        assert (refused.status_code, says(refused.text, "model.py no update_adapter")) == (400, True)
    finally:
        server.stop()


def test_an_adapter_of_the_model_that_its_code_refuses(tmp_path: Path) -> None:
    (tmp_path / "adapters" / "bad").mkdir(parents=True)
    (tmp_path / "model.py").write_text(HANDLER)
    configuration = read_configuration({"LMI_MODEL_DIR": str(tmp_path)})
    assert configuration.custom_code is not None
    with raises(CodeError, "register_adapter: /adapters/bad no weights"):  # as lmi check
        load_once(configuration.custom_code, configuration.properties)


def test_which_function_a_batch_is_for(tmp_path: Path) -> None:
    code = CustomCode(path=f"{tmp_path}/model.py", directory=str(tmp_path), properties={})
    assert adapter_function(Batch(1, [], dynamic=False), code) is None


def test_the_folder_of_a_model(tmp_path: Path) -> None:
    def folder(name: str | None) -> Path | None:
        properties = {"model_dir": str(tmp_path)} | ({} if name is None else {"model_id": name})
        return model_folder(CustomCode(path="model.py", directory=str(tmp_path), properties=properties))

    (tmp_path / "weights").mkdir()
    assert folder("weights") == folder(f"{tmp_path}/weights") == tmp_path / "weights"
    assert [folder(None), folder(""), folder("hub/name"), folder("s3://bucket/model/")] == [None] * 4
