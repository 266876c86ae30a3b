"""Adapters that come and go beside the engine loop: order, failures, the registry, and requests in flight."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from facts import raises, says
from msgspec.msgpack import Decoder
from paged_runner import StoredTokensBackend, StoredTokensRunner
from waiting import wait_until

from backends.paged.adapter_cache import AdapterCache
from lmi_handlers.config.formatter_code import FormatterCode
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import DeadlineExceeded, InvalidRequest, LoadFailed
from lmi_handlers.core.request import EncodedPrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine import adapter_manager
from lmi_handlers.engine.adapter_formatters import (
    AdapterFormatters,
    FormatterChange,
    FormattersChanged,
    LoadFormatters,
)
from lmi_handlers.engine.adapter_manager import AdapterManager
from lmi_handlers.engine.adapter_registry import Adapters, RegisteredAdapter, changing, read_registry
from lmi_handlers.engine.adapters import Stores, local_source
from lmi_handlers.engine.admission import RollingBatch
from lmi_handlers.engine.loop import EngineLoop, Inbox
from lmi_handlers.engine.messages import (
    AdapterChanged,
    EngineMessage,
    Failed,
    LoadAdapter,
    Outputs,
    Ready,
    Submit,
    UnloadAdapter,
)
from lmi_handlers.engine.replicas import Replicas
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.engine.worker_server import WorkerServer
from lmi_handlers.model_files.adapter_weights import CONFIG_NAME
from lmi_handlers.workers.channel import Channel
from lmi_handlers.workers.host import listen


class RecordingWorker:
    """Keeps the messages that it is sent."""

    def __init__(self) -> None:
        self.messages: list[EngineMessage] = []

    def send(self, message: EngineMessage) -> None:
        self.messages.append(message)

    def answers(self) -> list[tuple[int, str]]:
        """The number and the error of each answer about an adapter or a request, in order."""
        found = [message for message in self.messages if isinstance(message, AdapterChanged | Failed)]
        return [(message.number, message.message if isinstance(message, Failed) else "") for message in found]

    def wait_for(self, number: int) -> str:
        wait_until(lambda: number in dict(self.answers()))
        return dict(self.answers())[number]


class Adapted:
    """An engine loop with a manager, on a backend whose adapters are the names of their folders."""

    def __init__(
        self, folder: Path, refused: str = "broken", own: str = "", formatters: AdapterFormatters | None = None
    ) -> None:
        """`refused` is the folder of an adapter that this engine cannot load, `own` that of the model's adapter "own"."""
        self.refused = refused
        self.store = folder / "store"
        self.runtime_dir = folder / "runtime"
        self.announced: list[dict[str, str]] = []
        self.folders: list[str] = []
        self.worker = RecordingWorker()
        self._inbox: Inbox = queue.SimpleQueue()
        capabilities = Capabilities(backend="paged", max_model_len=200, vocab_size=64)
        self.backend = StoredTokensBackend(
            StoredTokensRunner(100), capabilities, adapters=AdapterCache(self.read, max_loras=2, max_cpu_loras=3)
        )
        path = folder / "model" / own
        if own:
            self.backend.add_adapter("own", path, own, pinned=False)
        self.manager = AdapterManager(
            self.backend,
            self._inbox,
            lambda digests: self.announced.append(dict(digests)),
            runtime_dir=self.runtime_dir,
            open=self.open,
            open_own=contextlib.nullcontext,
            adapters={"own": RegisteredAdapter(str(path), folder=str(path))} if own else {},
            reserved=("model",),
            formatters=formatters,
        )
        self.manager.restore()
        self.socket = self.runtime_dir / f"{id(self)}.sock"
        self._server = WorkerServer(self.socket, self._inbox)
        self._server.announce(Ready("", capabilities))
        self._loop = EngineLoop(self.backend, RollingBatch(4), 100, self._inbox, change_adapter=self.manager.handle)
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def open(self, source: str, earlier: str) -> Iterator[Path]:
        """Open a folder of the store. `folders` has those that are open, and what they were before."""
        if source == "unreachable":
            raise LoadFailed("S3 does not answer")
        path = local_source(source, Stores((self.store,)))
        if not (path / CONFIG_NAME).is_file():
            raise InvalidRequest("it is gone")
        self.folders.append(source)
        assert earlier in ("", str(path))
        try:
            yield path
        finally:
            self.folders.remove(source)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.manager.digests)

    @property
    def registry(self) -> Adapters:
        return read_registry(self.runtime_dir) or {}

    def registered(self, source: str, version: int, *, pinned: bool = False) -> RegisteredAdapter:
        return RegisteredAdapter(source, pinned, version, str(self.store / source))

    def stop(self) -> None:
        self._loop.stop()
        self._thread.join(10)

    def read(self, name: str, folder: Path) -> str:
        if folder.name == self.refused:
            raise InvalidRequest(f"adapter {name!r} is broken")
        if folder.name == "bug":
            raise KeyError("bug")
        return folder.name

    def send(self, message: Any) -> str:
        self._inbox.put((self.worker, message))
        return self.worker.wait_for(message.number)

    def submit(self, number: int, adapter: str, max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self._inbox.put((self.worker, Submit(number, f"r{number}", [EncodedPrompt([3, 4, 5], adapter)], params)))

    def finished(self, number: int) -> bool:
        items = [item for message in self.worker.messages if isinstance(message, Outputs) for item in message.outputs]
        return any(item.number == number and item.output.finish_reason is not None for item in items)


@pytest.fixture
def adapted(tmp_path: Path) -> Iterator[Adapted]:
    for name in ("a", "b", "c", "broken", "bug"):
        (tmp_path / "store" / name).mkdir(parents=True)
        (tmp_path / "store" / name / CONFIG_NAME).write_text(json.dumps({"name": name}))
    (tmp_path / "runtime").mkdir()
    adapted = Adapted(tmp_path)
    yield adapted
    adapted.stop()


def test_adapters_come_and_go_and_outlive_the_engine(adapted: Adapted, tmp_path: Path) -> None:
    assert adapted.registry == {}
    assert adapted.send(LoadAdapter(1, "x", "a", 1, pinned=True)) == ""
    assert adapted.send(LoadAdapter(2, "y", "b", 2)) == ""
    assert adapted.send(LoadAdapter(3, "y", "b", 3)) == ""  # the same again
    assert says(adapted.send(LoadAdapter(4, "y", "c", 4)), "adapter y already b")
    assert adapted.send(LoadAdapter(5, "y", "c", 5, replace=True)) == ""
    assert [tuple(digests) for digests in adapted.announced] == [("x",), ("x", "y"), ("x", "y")]
    assert adapted.registry == {"x": adapted.registered("a", 1, pinned=True), "y": adapted.registered("c", 5)}
    assert adapted.folders == ["a", "c"]
    restarted = Adapted(tmp_path)
    assert restarted.names == restarted.backend.capabilities.adapters == ("x", "y")
    restarted.stop()
    assert adapted.send(UnloadAdapter(7, "x")) == ""
    assert adapted.send(UnloadAdapter(8, "x")) == ""
    assert tuple(adapted.announced[-1]) == adapted.names == ("y",)
    wait_until(lambda: adapted.backend.capabilities.adapters == ("y",))
    assert adapted.registry == {"y": adapted.registered("c", 5)}
    wait_until(lambda: adapted.folders == ["c"])


def test_failed_load_leaves_nothing_behind(adapted: Adapted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_manager, "MAX_ADAPTERS", 2)
    assert adapted.send(LoadAdapter(1, "x", "a", 1, pinned=True)) == ""
    assert adapted.send(LoadAdapter(2, "y", "broken", 2)) == "adapter 'y' is broken"
    assert adapted.send(LoadAdapter(3, "y", "bug", 3)) == "KeyError: 'bug'"
    assert says(adapted.send(LoadAdapter(4, "model", "a", 4)), "model name of")
    assert "must have 1 to 128 letters" in adapted.send(LoadAdapter(5, "../y", "a", 5))
    assert "is not a folder" in adapted.send(LoadAdapter(6, "y", "nothing", 6))
    assert adapted.send(LoadAdapter(7, "y", "b", 7, pinned=True)) == ""
    assert says(adapted.send(LoadAdapter(8, "z", "c", 8)), "2 maximum unload")
    monkeypatch.setattr(adapter_manager, "MAX_ADAPTERS", 3)
    assert "cannot be pinned: 2 are" in adapted.send(LoadAdapter(9, "z", "c", 9, pinned=True))
    assert adapted.names == adapted.backend.capabilities.adapters == ("x", "y")
    assert list(adapted.registry) == ["x", "y"]
    assert adapted.folders == ["a", "b"]


def test_requests_in_flight_finish(adapted: Adapted) -> None:
    """One that is unloaded and loaded again meanwhile stays."""
    for number, name in enumerate("xy", 1):
        assert adapted.send(LoadAdapter(number, name, "a", number)) == ""
        adapted.submit(10 + number, name, max_tokens=190)
    assert adapted.send(UnloadAdapter(3, "x")) == ""
    assert adapted.send(UnloadAdapter(4, "y")) == ""
    assert adapted.send(LoadAdapter(5, "y", "b", 5)) == ""
    wait_until(lambda: adapted.finished(11) and adapted.finished(12))
    wait_until(lambda: adapted.backend.capabilities.adapters == ("y",))
    adapted.submit(13, "x", max_tokens=1)
    assert says(adapted.worker.wait_for(13), "adapter x no longer")
    adapted.submit(14, "y", max_tokens=1)
    wait_until(lambda: adapted.finished(14))


def test_registered_adapter_that_is_gone_is_dropped(adapted: Adapted, tmp_path: Path) -> None:
    assert adapted.send(LoadAdapter(1, "x", "a", 1)) == ""
    assert adapted.send(LoadAdapter(2, "y", "b", 2)) == ""
    (adapted.store / "b" / CONFIG_NAME).unlink()
    restarted = Adapted(tmp_path)
    restarted.stop()
    assert restarted.names == ("x",)
    assert adapted.registry == {"x": adapted.registered("a", 1)}


def test_engines_of_one_model_follow_each_other(adapted: Adapted, tmp_path: Path) -> None:
    other = Adapted(tmp_path)
    assert adapted.send(LoadAdapter(1, "x", "a", 1, pinned=True)) == ""
    assert adapted.send(LoadAdapter(2, "y", "b", 2)) == ""
    other.manager.follow()
    wait_until(lambda: tuple(other.announced[-1:]) == (adapted.manager.digests,))
    assert other.send(LoadAdapter(3, "y", "b", 2)) == ""  # it knows
    assert adapted.send(LoadAdapter(4, "y", "c", 4, replace=True)) == ""
    assert adapted.send(UnloadAdapter(5, "x")) == ""
    other.manager.follow()
    wait_until(lambda: other.backend.capabilities.adapters == ("y",))
    cache = other.backend._adapters
    assert cache is not None
    wait_until(lambda: cache.get("y", ()) == "c")
    announced = len(other.announced)
    other.manager.follow()
    assert other.send(UnloadAdapter(6, "nobody")) == ""
    assert len(other.announced) == announced
    assert other.worker.answers() == [(3, ""), (6, "")]
    other.stop()


def test_adapters_of_one_name_are_told_apart_by_their_files(adapted: Adapted, tmp_path: Path) -> None:
    """Whether they are replaced, unloaded meanwhile, or others at the same place. Equal ones are equal on any server."""
    digests = []

    def load(number: int, source: str, *, replace: bool = False) -> None:
        assert adapted.send(LoadAdapter(number, "x", source, number, replace=replace)) == ""
        digests.append(adapted.announced[-1]["x"])

    load(1, "a")
    load(2, "b", replace=True)
    assert adapted.send(UnloadAdapter(3, "x")) == ""
    load(4, "a")
    (adapted.store / "a" / CONFIG_NAME).write_text(json.dumps({"name": "z"}))
    load(5, "a", replace=True)
    assert adapted.send(LoadAdapter(6, "y", "b", 6)) == ""
    first, second, again, changed = digests
    assert len({first, second, changed}) == 3
    assert again == first
    assert adapted.manager.digests == {"x": changed, "y": second}
    restarted = Adapted(tmp_path)
    assert restarted.manager.digests == adapted.manager.digests
    restarted.stop()


def test_only_the_version_that_was_loaded_is_taken_back(adapted: Adapted) -> None:
    assert adapted.send(LoadAdapter(1, "x", "a", 1)) == ""
    assert adapted.send(LoadAdapter(2, "x", "b", 2, replace=True)) == ""
    assert adapted.send(UnloadAdapter(3, "x", 1)) == ""
    assert adapted.names == ("x",)
    assert list(adapted.registry) == ["x"]
    assert adapted.send(UnloadAdapter(4, "x", 2)) == ""
    assert adapted.registry == {}


def test_registered_adapter_is_loaded_once_its_source_answers(
    adapted: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the engine serves without it. It does not serve what other engines have replaced."""
    monkeypatch.setattr(adapter_manager, "_TRY_AGAIN", 0.0)
    assert adapted.send(LoadAdapter(1, "x", "unreachable", 1)) == "S3 does not answer"
    assert adapted.send(LoadAdapter(2, "y", "a", 2)) == ""
    with changing(adapted.runtime_dir) as adapters:
        adapters.update(
            {"x": RegisteredAdapter("unreachable", version=3), "y": RegisteredAdapter("unreachable", version=4)}
        )
    restarted = Adapted(tmp_path)
    adapted.manager.follow()
    wait_until(lambda: adapted.backend.capabilities.adapters == restarted.backend.capabilities.adapters == ())
    assert sorted(adapted.registry) == ["x", "y"]
    with changing(adapted.runtime_dir) as adapters:
        adapters.update({"x": RegisteredAdapter("b", version=3), "y": RegisteredAdapter("c", version=4)})
    for engine in (adapted, restarted):
        engine.manager.follow()
    wait_until(lambda: sorted(adapted.names) == sorted(restarted.names) == ["x", "y"])
    restarted.stop()


class InBucket(Adapted):
    """The source "bucket" has the files of the folder `now`. Files that were there before are in the cache."""

    now = "a"

    @contextlib.contextmanager
    def open(self, source: str, earlier: str) -> Iterator[Path]:
        if source != "bucket":
            raise InvalidRequest("it is outside of the stores")
        yield Path(earlier) if earlier else self.store / self.now


def loaded(engine: Adapted, name: str) -> tuple[object, ...]:
    """What the backend computes with, and what the registry says."""
    assert engine.backend._adapters is not None
    known = engine.registry[name]
    return engine.backend._adapters.get(name, ()), known.version, Path(known.folder).name


def test_files_that_were_loaded_before_are_served_again(
    adapted: Adapted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their source has others by now. The model's own need not be in a place that requests may name."""
    home = tmp_path / "home"
    (home / "runtime").mkdir(parents=True)
    (home / "store").symlink_to(tmp_path / "store")
    engines = [InBucket(home, refused, own="own") for refused in ("broken", "c")]
    replicas = Replicas([engine.socket for engine in engines], lambda announcement: None, 60.0)
    replicas.start()
    wait_until(lambda: all(part.accepts for part in replicas.status.parts))
    replicas.load_adapter("x", "bucket", timeout=60)
    before = [loaded(engine, name) for engine in engines for name in ("x", "own")]
    monkeypatch.setattr(InBucket, "now", "c")
    for name in ("x", "own"):
        with pytest.raises(InvalidRequest, match="is broken"):
            replicas.load_adapter(name, "bucket", timeout=60, replace=True)
    for engine in engines:
        engine.manager.follow()
        assert engine.send(UnloadAdapter(1, "nobody")) == ""  # it has followed
    assert [loaded(engine, name) for engine in engines for name in ("x", "own")] == before
    assert [place for place, _, _ in before] == ["a", "own"] * 2
    replicas.close()
    for engine in engines:
        engine.stop()


def test_adapter_that_another_engine_cannot_load_is_unloaded_everywhere(
    adapted: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the answer any more. After any other error, it is tried again."""

    class Clumsy(Adapted):
        failures = 1

        def read(self, name: str, folder: Path) -> str:
            if folder.name == "b" and self.failures:
                self.failures -= 1
                raise KeyError("bug")
            return super().read(name, folder)

    monkeypatch.setattr(adapter_manager, "_TRY_AGAIN", 0.0)
    other = Clumsy(tmp_path, refused="a")
    for number, (name, source) in enumerate((("x", "a"), ("y", "b")), 1):
        assert adapted.send(LoadAdapter(number, name, source, number)) == ""
    other.manager.follow()
    wait_until(lambda: list(adapted.registry) == ["y"])
    adapted.manager.follow()
    wait_until(lambda: adapted.names == ("y",))
    other.manager.follow()
    wait_until(lambda: other.names == ("y",))
    other.stop()


def test_adapter_that_is_registered_while_an_engine_starts_stays(adapted: Adapted, tmp_path: Path) -> None:
    class Slow(Adapted):
        def open(self, source: str, earlier: str) -> NoReturn:
            with changing(self.runtime_dir) as adapters:
                adapters["x"] = self.registered("b", 2)
            raise InvalidRequest("it is gone")

    with changing(adapted.runtime_dir) as adapters:
        adapters["x"] = adapted.registered("a", 1)
    Slow(tmp_path).stop()
    assert adapted.registry == {"x": adapted.registered("b", 2)}


def test_adapter_that_one_engine_refuses_is_on_none(adapted: Adapted, tmp_path: Path) -> None:
    """What was registered before is served again, by all. A load that takes too long goes on instead."""
    scarce = Adapted(tmp_path, refused="c")
    replicas = Replicas([adapted.socket, scarce.socket], lambda announcement: None, 60.0)
    replicas.start()
    wait_until(lambda: all(part.accepts for part in replicas.status.parts))
    for replace in (False, True):
        with pytest.raises(InvalidRequest, match="adapter 'x' is broken"):
            replicas.load_adapter("x", "c", timeout=60, replace=replace)
        assert {name: known.source for name, known in adapted.registry.items()} == ({"x": "a"} if replace else {})
        replicas.load_adapter("x", "a", timeout=60)
        version = adapted.registry["x"].version
        replicas.load_adapter("x", "a", timeout=60)  # again
        assert adapted.registry["x"].version == version
    for engine in (adapted, scarce):
        assert (engine.names, engine.folders) == (("x",), ["a"])
    with (
        changing(adapted.runtime_dir),  # until then, no engine can register it
        raises(DeadlineExceeded, "adapter y not loaded"),
    ):
        replicas.load_adapter("y", "b", timeout=0)
    wait_until(lambda: "y" in adapted.registry)
    scarce.manager.follow()
    wait_until(lambda: scarce.names == ("x", "y"))
    replicas.close()
    scarce.stop()


FORMATTER = """
from djl_python.output_formatter import output_formatter

@output_formatter
def write(response: dict) -> dict:
    return {}
"""


class ForgetfulProcess:
    """Answers as the process that runs formatters. It ends right after the first load, and is started again with none."""

    def __init__(self, path: Path) -> None:
        self.loaded: dict[str, int] = {}
        self.loads = 0
        self._stopping = threading.Event()
        self._listener = listen(path)
        self._listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                sock, _ = self._listener.accept()
                channel: Channel[FormattersChanged, FormatterChange] = Channel(sock, Decoder(FormatterChange))
                with contextlib.closing(channel):
                    for change in channel.receive():
                        channel.send(FormattersChanged(self._changed(change)))

    def _changed(self, change: FormatterChange) -> str | None:
        assert isinstance(change, LoadFormatters)
        name = change.script.adapter
        if change.only_asks:
            return None if self.loaded.get(name) == change.version else "not loaded"
        self.loads += 1
        if self.loads > 1:
            self.loaded[name] = change.version
        return None


def test_formatters_whose_process_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FORMATTER)
    code = FormatterCode(scripts=(), directory="/", properties={}, follows_adapters=True)
    properties = ServingProperties(predict_timeout=1)
    settings = EngineSettings(runtime_dir=str(tmp_path), properties=properties, started=0.0, formatters=code)
    with contextlib.closing(listen(settings.formatter_changes_path)), raises(LoadFailed, "1"):
        AdapterFormatters(settings).load("x", tmp_path, 1)


def test_formatters_whose_process_ends_before_they_are_registered(adapted: Adapted, tmp_path: Path) -> None:
    (adapted.store / "a" / "model.py").write_text(FORMATTER)
    code = FormatterCode(scripts=(), directory="/", properties={}, follows_adapters=True)
    runtime_dir = tmp_path / "runtime"
    settings = EngineSettings(
        runtime_dir=str(runtime_dir), properties=ServingProperties(), started=0.0, formatters=code
    )
    process = ForgetfulProcess(settings.formatter_changes_path)
    other = Adapted(tmp_path, formatters=AdapterFormatters(settings))
    try:
        assert other.send(LoadAdapter(1, "x", "a", 7)) == ""
        assert other.registry["x"].version == 7
        assert (process.loaded, process.loads) == ({"x": 7}, 2)
    finally:
        process.stop()
        other.stop()
