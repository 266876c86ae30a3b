"""A full TMPDIR: an engine that dies comes back nevertheless, and what does need disk says so. Needs a file system of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from facts import says
from full_disk import fill, small_disk
from model_store import StoreServer
from serving import StartServer
from waiting import wait_until

ECHO = "option.rolling_batch=echo\noption.restart_limit=6\n"


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk() as folder:
        yield folder


def test_web_workers_and_an_engine_are_replaced_on_a_full_disk(start_server: StartServer, disk: Path) -> None:
    """What is missing is said, and does no harm once there is room."""
    server = start_server(ECHO, environ={"TMPDIR": str(disk), "LMI_WORKERS": "1"})
    filler = fill(disk)
    server.process.send_signal(signal.SIGTTIN)  # one more, for whose numbers there is no file
    wait_until(lambda: says(server.log, "process counts itself"))
    before = {worker.pid for worker in server.web_workers()}
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool((after := {worker.pid for worker in server.web_workers()}) and not after & before))
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
    server.engine().kill()
    wait_until(lambda: server.log.count('"engine ready"') == 2)
    server.wait_ready()
    (folder,) = disk.glob("lmi-*")
    (folder / "adapters.json").unlink()
    (folder / "metrics-of-engine-0.json").unlink()  # an engine deletes it when it starts, which would make room
    fill(disk, "rest")
    server.engine().kill()
    wait_until(lambda: "No space left on device" in server.ping().text)
    assert server.log.count("No space left on device") > 0
    filler.unlink()
    server.wait_ready()
    assert server.log.count('"engine ready"') == 3


def test_a_pool_comes_back_on_a_full_disk(start_server: StartServer, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0" / "model.py").write_text("def handle(inputs):\n    return None\n")
    server = start_server("", environ={"TMPDIR": str(disk), "OMP_NUM_THREADS": "1"})
    fill(disk)
    server.supervised("lmi_handlers.custom_code.pool").kill()
    wait_until(lambda: server.log.count('"model code ready"') == 2)
    server.wait_ready()


def test_a_server_gives_up_on_a_full_disk(start_server: StartServer, disk: Path) -> None:
    server = start_server(ECHO.replace("=6", "=0"), environ={"TMPDIR": str(disk)})
    fill(disk)
    server.engine().kill()
    assert server.process.wait(60) == 1
    assert "(last: SIGKILL" in server.log


def test_a_model_falls_asleep_and_wakes_up_after_the_disk_was_full(tmp_path: Path, disk: Path) -> None:
    server = StoreServer(tmp_path, {"a": ECHO}, environ={"TMPDIR": str(disk)})
    try:
        server.wait_ready()
        filler = fill(disk)
        server.ask("PUT", "/models/a?min_worker=0")
        filler.unlink()
        wait_until(lambda: server.states() == {"a": "Sleeping"})
        wait_until(lambda: server.generate("a").status_code == 200)
    finally:
        server.stop()
