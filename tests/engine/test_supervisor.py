"""Which processes end when another is killed, and how often the engine is restarted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from facts import says
from hypothesis import given
from hypothesis import strategies as st
from serving import Server, StartServer
from waiting import still_running, wait_until

from backends import registry
from lmi_handlers.config.properties import load_properties
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.workers import process
from lmi_handlers.workers.back_off import Restarts, back_off
from lmi_handlers.workers.process import KeptProcess, ProcessStays

ECHO = "option.rolling_batch=echo\noption.echo_faults=true\n"


# Restarts


@given(limit=st.integers(0, 5), window=st.floats(1, 1000), gaps=st.lists(st.floats(0, 500), max_size=30))
def test_restart_limit_holds_in_every_window(limit: int, window: float, gaps: list[float]) -> None:
    restarts, now, granted = Restarts(limit, window), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if restarts.after_death(now) is None:
            assert sum(now - earlier <= window for earlier in granted) == limit, (
                "gave up although more restarts were allowed"
            )
            break
        granted.append(now)
        assert sum(now - earlier <= window for earlier in granted) <= limit


def test_back_off_doubles_and_is_reset_after_a_quiet_window() -> None:
    restarts = Restarts(limit=3, window=100)
    assert [restarts.after_death(now) for now in (0, 1, 2)] == [0.5, 1, 2]
    assert restarts.after_death(3) is None
    assert restarts.after_death(200) == 0.5


def test_back_off_has_a_limit() -> None:
    assert [back_off(failures) for failures in (0, 1, 2, 3, 7, 8, 5000)] == [0.0, 0.5, 1.0, 2.0, 30.0, 30.0, 30.0]
    restarts = Restarts(limit=2000, window=100)
    assert [restarts.after_death(0) for _ in range(2000)][-1] == 30.0


def test_restarts_can_be_disabled() -> None:
    assert Restarts(limit=0, window=100).after_death(0) is None


# Real processes


def kill_and_wait(start_server: StartServer, choose: Callable[[Server], psutil.Process]) -> list[psutil.Process]:
    """Kill one process of a busy server. Returns the server's processes that still run some seconds later."""
    server = start_server(ECHO + "option.web_workers=2\n")
    arbiter = psutil.Process(server.process.pid)
    # Two web workers, supervisor, engine and watchdog. The server is ready with its first web worker.
    wait_until(lambda: len(arbiter.children(recursive=True)) == 5)
    family = [arbiter, *arbiter.children(recursive=True)]
    choose(server).kill()
    return still_running(family)


@pytest.mark.long  # test_liveness.py tests the harder case of a stopped engine
def test_killed_arbiter_leaves_no_processes_behind(start_server: StartServer) -> None:
    assert kill_and_wait(start_server, lambda server: psutil.Process(server.process.pid)) == []


@pytest.mark.long  # see above
def test_killed_supervisor_ends_its_engine_and_the_server(start_server: StartServer) -> None:
    """Without a supervisor, no engine can be started. The container must end so that SageMaker starts another one."""
    assert kill_and_wait(start_server, lambda server: server.supervisor()) == []


PARENT = """
import subprocess, sys, time
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, start_new_session=True)
engine.stdin.write(sys.argv[2].encode() + b"\\n")
engine.stdin.flush()
time.sleep(600)
"""
ENGINE_WITH_CHILD = """
import os, subprocess, sys
subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
os.execv(sys.executable, [sys.executable, "-m", "lmi_handlers.engine.process"])
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_processes_of_the_engine_end_with_a_killed_supervisor(tmp_path: Path, stopped: bool) -> None:
    """Even if they never check their parent, like a vLLM worker in a tight loop, and the engine is stopped."""
    (tmp_path / "serving.properties").write_text(ECHO)
    settings = EngineSettings(
        runtime_dir=str(tmp_path),
        properties=load_properties(tmp_path, {}, registry()).properties,
        started=time.monotonic(),
    )
    parent = psutil.Popen([sys.executable, "-c", PARENT, ENGINE_WITH_CHILD, msgspec.json.encode(settings).decode()])
    family = []
    try:
        deadline = time.monotonic() + 60
        while not settings.socket_path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = parent.children(recursive=True)
        assert "sleep" in [process.name() for process in family]
        if stopped:
            parent.children()[0].suspend()
        parent.kill()
        assert still_running(family) == []
    finally:
        parent.kill()
        parent.wait()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_server_gives_up_after_its_restarts(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.restart_limit=1\n")
    engine = server.engine()
    engine.kill()
    server.wait_restarted(engine).engine().kill()
    assert server.process.wait(120) == 1
    assert says(server.log, "died 2 600 SIGKILL")


@pytest.mark.long  # the tests of `Restarts` above cover many histories
def test_server_reports_that_it_gives_up_on_stalled_engines(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.restart_limit=0\noption.stall_timeout=4\n")
    server.engine().suspend()
    assert server.process.wait(120) == 1
    assert says(server.log, "last: stalled killed not run")
    assert "out of memory" not in server.log


TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
attached = libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0
print(attached, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="uses ptrace as Linux has it")
def test_supervisor_does_not_wait_for_an_engine_that_survives_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traced process stays visible to its parent until the tracer has seen its end, and this tracer never looks."""
    monkeypatch.setattr(process, "KILL_TIMEOUT", 0.5)
    with (
        KeptProcess("http.server", "--bind", "127.0.0.1", "0") as engine,
        subprocess.Popen([sys.executable, "-c", TRACER, str(engine.pid)], stdout=subprocess.PIPE) as tracer,
    ):
        assert tracer.stdout is not None
        try:
            if tracer.stdout.readline() != b"True\n":
                pytest.skip("ptrace is not allowed here")
            with pytest.raises(ProcessStays, match="after SIGKILL"):
                engine.end()
        finally:
            tracer.kill()
            engine.kill()


def test_restarts_outside_the_window_do_not_count(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.restart_limit=1\noption.restart_window=1\n")
    for _ in range(3):
        time.sleep(1.1)
        engine = server.engine()
        engine.kill()
        server.wait_restarted(engine)
        assert server.process.poll() is None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a batch of one sequence. The last test ends it."""
    properties = ECHO + "option.echo_tokens_per_second=20\noption.max_rolling_batch_size=1\n"
    server = Server(tmp_path_factory.mktemp("supervised") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_killed_web_worker_is_replaced_and_its_requests_are_dropped(server: Server) -> None:
    endless = {"inputs": "abc", "stream": True, "parameters": {"max_new_tokens": 1_000_000, "ignore_eos_token": True}}
    with server.invoke(endless, stream=True) as answer:
        next(answer.iter_lines())
        server.web_worker().kill()
    server.wait_ready()
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}


def test_sigterm_to_all_processes_is_a_graceful_shutdown_too(server: Server) -> None:
    """Service managers send SIGTERM to all processes. The engine must keep running until the web workers have finished."""
    body = {"inputs": "x" * 30, "stream": True, "parameters": {"max_new_tokens": 30}}
    arbiter = psutil.Process(server.process.pid)
    with server.invoke(body, stream=True) as answer:
        lines = answer.iter_lines()
        next(lines)
        for process in (*arbiter.children(recursive=True), arbiter):
            with contextlib.suppress(psutil.NoSuchProcess):  # whatever waits for nothing may have ended
                process.terminate()
        assert json.loads(list(lines)[-1])["generated_text"] == "x" * 30
    assert server.process.wait(120) == 0
