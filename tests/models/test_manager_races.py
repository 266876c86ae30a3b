"""The manager of models when commands cross, and when the machine refuses what it needs."""

from __future__ import annotations

import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from facts import says, tell
from waiting import wait_until

from lmi_handlers.config.store_settings import StoreSettings
from lmi_handlers.core.errors import ConfigError, EngineNotReady, LMIError, LoadFailed, ModelNotFound, NoRoomYet
from lmi_handlers.engine.formatters_process import FormattersProcess
from lmi_handlers.launch.model_manager import plan
from lmi_handlers.models import manager
from lmi_handlers.models.manager import Manager, Plan
from lmi_handlers.models.messages import Load
from lmi_handlers.models.processes import ModelProcesses
from lmi_handlers.models.registry import Models, ModelState, RegisteredModel, read_models
from lmi_handlers.models.room import Room
from lmi_handlers.models.settings import ManagerSettings
from lmi_handlers.models.slots import Slot

ECHO = "option.rolling_batch=echo\noption.echo_faults=true\n"


class Bench:
    """A manager without web workers. `held` keeps the next plans from being made until it is set. `plans` counts them."""

    def __init__(self, directory: Path) -> None:
        self.runtime = directory / "runtime"
        self.store = directory / "store"
        self.runtime.mkdir()
        self.held = threading.Event()
        self.held.set()
        self.plans = 0
        store = StoreSettings(directory=str(self.store), load_models=())
        settings = ManagerSettings(
            runtime_dir=str(self.runtime), store=store, started=time.monotonic(), drain_seconds=3
        )
        self.manager = Manager(settings, self._plan)

    def _plan(self, entry: RegisteredModel, runtime_dir: Path) -> Plan:
        self.plans += 1
        self.held.wait(120)
        return plan(entry, runtime_dir)

    def add(self, name: str, properties: str = ECHO) -> None:
        folder = self.store / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "serving.properties").write_text(properties)

    def load(self, name: str, *, waits: bool = True) -> None:
        self.manager.load(Load(name, name, waits=waits))

    @property
    def models(self) -> Models:
        return read_models(self.runtime) or {}

    def state(self, name: str) -> ModelState | None:
        return self.models[name].state if name in self.models else None

    @property
    def directories(self) -> list[str]:
        return sorted(path.name for path in self.runtime.glob("model-*"))

    @property
    def needed(self) -> set[str]:
        """What a server that listens ends without."""
        self.manager._listens = True
        return {path.relative_to(self.runtime).as_posix() for path in self.manager.needed()}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.add("a")
    bench.add("b")
    yield bench
    bench.held.set()
    for name in bench.models:
        bench.manager.unload(name)
    wait_until(lambda: not bench.directories)  # a load that nobody waits for may still have to notice


def test_a_model_is_unloaded_while_its_files_are_fetched(bench: Bench) -> None:
    bench.held.clear()
    errors: list[LMIError] = []

    def load() -> None:
        try:
            bench.load("a")
        except LMIError as error:
            errors.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    bench.load("b", waits=False)
    wait_until(lambda: set(bench.models) == {"a", "b"})
    for name in ("a", "b"):
        bench.manager.unload(name)  # does not wait for the files
    assert not bench.models
    bench.load("b", waits=False)  # of which the first load knows nothing
    bench.held.set()
    loading.join()
    assert [type(error) for error in errors] == [ModelNotFound]
    wait_until(lambda: bench.state("b") is ModelState.READY)
    wait_until(lambda: len(bench.directories) == 1)


def test_a_model_is_unloaded_while_it_wakes(bench: Bench) -> None:
    bench.load("a")
    [directory] = bench.directories
    assert bench.needed >= {
        "manager.sock",
        "models.json",
        f"{directory}/engine-0.sock",
        f"{directory}/engine-0.heartbeat",
    }
    bench.manager.scale("a", None)
    assert (bench.state("a"), bench.directories) == (ModelState.SLEEPING, [])
    assert bench.needed == {"manager.sock", "models.json"}
    bench.manager.wake("a")
    bench.manager.unload("a")
    assert (bench.models, bench.directories) == ({}, [])
    with pytest.raises(ModelNotFound):
        bench.manager.wake("a")


def test_scaling(bench: Bench) -> None:
    bench.load("a")
    first = bench.models["a"].number
    for options in ({}, {"minWorkers": "1"}):  # what it has
        bench.manager.scale("a", options)
    assert bench.models["a"].number == first
    for _ in range(2):
        bench.manager.scale("a", None)
        assert bench.state("a") is ModelState.SLEEPING
    bench.manager.scale("a", {"minWorkers": "2"})
    assert (bench.state("a"), bench.models["a"].options) == (ModelState.READY, {"minWorkers": "2"})
    served = bench.models["a"]
    with pytest.raises(ConfigError):
        bench.manager.scale("a", {"minWorkers": "none"})
    assert bench.models["a"] == served  # its engines have not been ended
    with pytest.raises(ConfigError):
        bench.manager.scale("a", {"option.echo_fault": "raise_in_load"})
    assert (bench.state("a"), bench.models["a"].options) == (ModelState.SLEEPING, {"minWorkers": "2"})
    bench.manager.wake("a")
    wait_until(lambda: bench.state("a") is ModelState.READY)


def test_a_model_is_woken_while_it_is_scaled(bench: Bench) -> None:
    bench.load("a")
    bench.manager.scale("a", None)
    bench.held.clear()
    scaling = threading.Thread(target=bench.manager.scale, args=("a", {"minWorkers": "2"}))
    plans = bench.plans
    scaling.start()
    wait_until(lambda: bench.plans > plans)  # otherwise the other one might come first
    waking = threading.Thread(target=bench.manager.wake, args=("a",))
    waking.start()
    time.sleep(0.2)
    assert bench.state("a") is ModelState.SLEEPING
    bench.held.set()
    scaling.join()
    waking.join()
    assert (bench.state("a"), bench.models["a"].options) == (ModelState.READY, {"minWorkers": "2"})
    assert len(bench.directories) == 1
    bench.held.clear()
    bench.load("b", waits=False)
    with pytest.raises(EngineNotReady):
        bench.manager.scale("b", None)
    bench.held.set()


def test_a_model_that_could_not_be_woken_sleeps_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.add("a", ECHO + "option.restart_limit=0\n")
    bench.load("a")
    bench.manager.scale("a", None)
    (bench.runtime / f"model-{bench.models['a'].number + 1}").touch()  # stands in the way of its directory
    with monkeypatch.context() as patch:
        patch.setattr(manager, "_FIRST_BACK_OFF", manager._LONGEST_BACK_OFF)
        with pytest.raises(LoadFailed, match="File exists"):
            bench.manager.wake("a")
        assert bench.state("a") is ModelState.SLEEPING
        plans = bench.plans
        with pytest.raises(LoadFailed, match="File exists"):
            bench.manager.wake("a")
        assert bench.plans == plans, "it was tried again at once"
    next(bench.runtime.glob("model-*")).unlink()
    slot = bench.manager._slots.known("a")
    slot.retry_at, slot.failures = 0.0, 0

    def wakes() -> bool:
        try:
            bench.manager.wake("a")
        except LoadFailed:
            return False
        return True

    bench.add("a", ECHO + "option.restart_limit=0\noption.echo_fault=exit_in_load\n")
    wait_until(wakes)
    wait_until(lambda: "died 1 times" in bench.models["a"].cause)
    assert bench.state("a") is ModelState.SLEEPING
    bench.add("a")
    wait_until(wakes)
    wait_until(lambda: bench.state("a") is ModelState.READY)


def refuse_room(*_arguments: object) -> None:
    raise NoRoomYet("1 models are loaded and in use")


def locks(folder: Path) -> int:
    """Files in a cache that this process keeps open. What they lock cannot be deleted."""
    files = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(file.is_relative_to(folder) for file in files)


@pytest.fixture
def archived(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Slot, Path]:
    """A model from an archive that is served from the start, and the cache for it."""
    monkeypatch.setenv("LMI_CACHE_DIR", str(tmp_path / "cache"))
    with tarfile.open(bench.store / "c.tar.gz", "w:gz") as archive:
        archive.add(bench.store / "a" / "serving.properties", "serving.properties")
    [slot] = bench.manager._slots.begin([RegisteredModel(name="c", url="c.tar.gz", at_start=True)])
    return slot, tmp_path / "cache"


def test_a_model_that_waits_for_room_is_unpacked_once(
    bench: Bench, archived: tuple[Slot, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again twice a second, and each try kept another file open until none was left."""
    slot, cache = archived
    with monkeypatch.context() as patch:
        patch.setattr(Room, "take", refuse_room)
        bench.manager._load_first([slot])
        for _ in range(3):
            with pytest.raises(NoRoomYet):
                bench.manager.wake("c")
        assert bench.state("c") is ModelState.SLEEPING
        assert locks(cache) == 1
    bench.manager.wake("c")
    wait_until(lambda: bench.state("c") is ModelState.READY)
    bench.manager.unload("c")
    assert locks(cache) == 0


def test_a_model_that_was_unloaded_before_it_met_no_room_keeps_no_files(
    bench: Bench, archived: tuple[Slot, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, cache = archived

    def unload_and_refuse(*_arguments: object) -> None:
        assert locks(cache) == 1
        bench.manager.unload("c")
        refuse_room()

    monkeypatch.setattr(Room, "take", unload_and_refuse)
    bench.manager._load_first([slot])
    assert (bench.models, locks(cache)) == ({}, 0)


def test_a_model_that_waits_for_room_warns_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("a", ECHO + "option.max_rolling_batch_sizes=4\n")
    with monkeypatch.context() as patch:
        patch.setattr(Room, "take", refuse_room)
        bench.manager._load_first(bench.manager._slots.begin([RegisteredModel(name="a", url="a", at_start=True)]))
        for _ in range(3):
            with pytest.raises(NoRoomYet):
                bench.manager.wake("a")
    bench.manager.wake("a")
    wait_until(lambda: bench.state("a") is ModelState.READY)
    warnings = [line for line in capsys.readouterr().err.splitlines() if says(line, "max_rolling_batch_sizes")]
    assert tell(warnings, ["warning model a max_rolling_batch_sizes"])


def test_an_engine_that_cannot_be_started_ends_the_load(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        with pytest.raises(LoadFailed, match="Resource temporarily unavailable"):
            bench.load("a")
    assert (bench.models, bench.directories) == ({}, [])


def test_a_directory_without_a_model(bench: Bench) -> None:
    (bench.store / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no model, and option"):
        bench.load("empty")
    assert not bench.models


def test_processes_may_be_stopped_before_they_are_started(bench: Bench) -> None:
    entry = RegisteredModel(name="a", url="a", directory=str(bench.store / "a"))
    settings = plan(entry, bench.runtime / "model-1").engine
    processes = ModelProcesses(settings, lambda _: None)
    processes.stop()
    processes.start()  # by a thread that has not noticed yet
    assert not processes.wait_serving()
    processes.stop()
    FormattersProcess(settings, lambda: None).stop()
