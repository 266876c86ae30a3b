"""A server that has lost its folder, or a socket in it, ends: it could not serve, and nobody would be told."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from facts import says
from model_store import StoreServer
from serving import StartServer
from waiting import wait_until

from lmi_handlers.engine.runtime_folder import make_runtime_folder, watch

ECHO = "option.rolling_batch=echo\n"
CODE = "def handle(inputs):\n    return None\n"
FORMATTER = """from djl_python.output_formatter import output_formatter

@output_formatter
def write(response):
    return response
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A TMPDIR with a path that is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="lost-"))
    yield folder
    shutil.rmtree(folder)


def replace(folder: Path) -> None:
    """Put an equal folder in place of this one."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    shutil.rmtree(folder)
    copy.rename(folder)


LOST = {
    "folder": (ECHO, None, "."),
    "heartbeat of one of several engines": (f"{ECHO}minWorkers=2\n", None, "engine-1.heartbeat"),
    "pool's socket": ("", CODE, "engine-0.sock"),
    "formatters' socket": (ECHO, FORMATTER, "formatters.sock"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_server_that_has_lost_what_it_needs_ends(
    case: str, start_server: StartServer, temporary: Path, tmp_path: Path
) -> None:
    properties, code, lost = LOST[case]
    if code is not None:
        (tmp_path / "m0").mkdir()
        (tmp_path / "m0" / "model.py").write_text(code)
    server = start_server(properties, environ={"TMPDIR": str(temporary)})
    wait_until(lambda: all((folder / lost).exists() for folder in temporary.glob("lmi-*")))
    (folder,) = temporary.glob("lmi-*")
    path = folder / lost
    if lost == ".":
        shutil.rmtree(folder)
    else:
        path.unlink()
    assert server.process.wait(60) == 1
    assert f"lmi: error: {path} was deleted" in server.log
    assert server.log.count("; the server ends") == 1


def test_a_cleaner_of_old_files_finds_the_folder_locked(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd-tmpfiles goes on to the next folder if it cannot lock one in this way."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    descriptor = os.open(make_runtime_folder(), os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


@pytest.fixture
def watched(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, threading.Event]:
    """The folder of a server that needs one file, and what is set when the server would end."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder, end = make_runtime_folder(), threading.Event()
    (folder / "engine-0.sock").touch()
    watch(folder, lambda: [folder / "engine-0.sock"], end.set)
    return folder, end


def test_a_folder_that_was_replaced_is_not_the_servers(
    watched: tuple[Path, threading.Event], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, end = watched
    replace(folder)
    assert end.wait(60)
    assert says(capfd.readouterr().err, f"lmi: error: {folder} deleted replaced")


def test_permissions_that_were_taken_away_are_restored(
    watched: tuple[Path, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    folder, end = watched
    socket = folder / "engine-0.sock"
    socket.chmod(0)
    wait_until(lambda: socket.stat().st_mode & 0o600 == 0o600)
    folder.chmod(0)
    wait_until(lambda: folder.stat().st_mode & 0o777 == 0o700)
    assert [says(message, "permissions restored") for message in caplog.messages] == [True, True]
    assert not end.is_set()


@pytest.mark.parametrize("lost", ["manager.sock", "model-1"])
def test_a_server_with_several_models_ends(lost: str, tmp_path: Path) -> None:
    server = StoreServer(tmp_path, {"a": ECHO})
    try:
        server.wait_ready()
        assert server.invoke({"inputs": "hi"}).json() == {"generated_text": "hi"}  # the only model is the default
        (folder,) = server.temporary.glob("lmi-*")
        path = folder / lost
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        assert server.process.wait(60) == 1
        assert server.log.count("; the server ends") == 1
    finally:
        server.stop()


def test_what_comes_and_goes_is_not_missed(tmp_path: Path) -> None:
    """An engine that is restarted makes its socket anew, and a model that sleeps or is unloaded has none."""
    server = StoreServer(tmp_path, {"a": ECHO, "b": ECHO})
    try:
        server.wait_ready()
        for engine in server.engines():
            engine.kill()
        wait_until(lambda: server.log.count('"engine ready"') == 4)
        wait_until(lambda: server.generate("a").status_code == 200)
        assert server.ask("PUT", "/models/a?min_worker=0").status_code == 200
        assert server.ask("DELETE", "/models/b").status_code == 200
        assert server.generate("a").status_code == 200
        assert "the server ends" not in server.log
    finally:
        server.stop()
