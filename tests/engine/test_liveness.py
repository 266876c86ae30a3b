"""Engines that hang: every client gets an answer in time, `/ping` gives the cause, and a new engine takes over."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import requests
from facts import says
from serving import Server, StartServer
from waiting import has_ended, still_running, wait_until

CLIENTS = 32
PREDICT_TIMEOUT = 40
STALL_TIMEOUT = 4
ECHO = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.echo_tokens_per_second=20\n"
    f"option.max_rolling_batch_size={CLIENTS + 1}\n"
)
LIMITS = f"option.predict_timeout={PREDICT_TIMEOUT}\noption.stall_timeout={STALL_TIMEOUT}\n"
OFTEN = "option.restart_window=1\noption.echo_load_seconds=600\noption.web_workers=1\n"
"""Allows one server to lose an engine in each of several tests."""


def endless(prompt: str = "abc", *, stream: bool = False) -> dict[str, Any]:
    return {"inputs": prompt, "stream": stream, "parameters": {"max_new_tokens": 100_000, "ignore_eos_token": True}}


def timed(server: Server, body: dict[str, Any], **options: Any) -> tuple[requests.Response, float]:
    """The answer, and the time when it was complete."""
    return server.invoke(body, **options), time.monotonic()


def error_of(answer: requests.Response) -> str:
    """The cause that an answer ends with. Fails unless the end is well-formed."""
    if answer.status_code != 200:
        assert answer.status_code in (500, 503, 504)
        return str(answer.json()["error"])
    assert answer.text.endswith("\n")
    last = json.loads(answer.text.splitlines()[-1])
    assert last["details"]["finish_reason"] == "error"
    return str(last["token"]["error_msg"])


def wait_for_status(server: Server, status: int, timeout: float = 60.0) -> dict[str, Any]:
    """Wait until `/ping` returns this status, and return its document."""
    deadline = time.monotonic() + timeout
    while (answer := server.ping()).status_code != status:
        assert time.monotonic() < deadline, f"/ping is {answer.status_code}: {answer.text}"
        time.sleep(0.05)
    document: dict[str, Any] = answer.json()[server.name]
    return document


def engines(server: Server) -> list[psutil.Process]:
    """All existing processes of this server that are or were an engine."""
    return [child for child in psutil.Process(server.process.pid).children(recursive=True) if is_engine(child)]


def is_engine(process: psutil.Process) -> bool:
    try:
        return "lmi_handlers.engine.process" in process.cmdline()
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short limits, for tests that end its engine and wait for the next one."""
    server = Server(tmp_path_factory.mktemp("hangs") / "m", ECHO + LIMITS + OFTEN)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with long limits and a file that its engines need."""
    directory = tmp_path_factory.mktemp("lasting") / "m"
    directory.mkdir()
    (directory / "template.jinja").write_text("{{ messages[0].content }}")
    server = Server(
        directory, ECHO + "option.stall_timeout=30\noption.restart_limit=20\noption.chat_template=template.jinja\n"
    )
    yield server.wait_ready()
    server.stop()


@pytest.fixture
def family() -> Iterator[Callable[[Server], list[psutil.Process]]]:
    """Returns all processes of a server. Those that still run after the test are killed."""
    known: list[psutil.Process] = []

    def of(server: Server) -> list[psutil.Process]:
        arbiter = psutil.Process(server.process.pid)
        known.extend([arbiter, *arbiter.children(recursive=True)])
        return known

    yield of
    for process in known:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


class StallWatch:
    """Polls `/ping`, and sends a request whenever the engine is reported as stalled.

    The engine is stalled for two seconds before it is killed, which occasional checks could miss.
    """

    def __init__(self, server: Server) -> None:
        self.phases: list[tuple[str, str]] = []
        self.answers: list[requests.Response] = []
        self._server = server
        self._done = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._task = self._pool.submit(self._run)

    def _run(self) -> None:
        while not self._done.wait(0.02):
            document = self._server.ping().json()[self._server.name]
            self.phases.append((document["status"], document.get("phase", "")))
            if document["status"] == "Stalled":
                self.answers.append(self._server.invoke({"inputs": "hello"}))

    def __enter__(self) -> StallWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._pool.shutdown()
        self._task.result()

    def wait_for_end(self) -> None:
        """Wait until the engine has been unhealthy and is healthy again."""
        deadline = time.monotonic() + 120
        while (
            not self.phases or self.phases[-1][0] != "Healthy" or {status for status, _ in self.phases} == {"Healthy"}
        ):
            assert not self._task.done(), self._task.exception()
            assert time.monotonic() < deadline, self.phases
            time.sleep(0.02)

    def stalled(self, cause: str) -> bool:
        """Whether `/ping` has reported a stall with this cause."""
        return any(status == "Stalled" and cause in phase for status, phase in self.phases)


HANGS = {
    "stopped": (None, "has not run for"),
    "a thread holds the GIL forever": ("x GRIP@1", "has not run for"),
    "steps that return nothing": ("x MUTE@1", "no progress"),
}


@pytest.mark.parametrize("hang", HANGS)
def test_hanging_engine_under_load(server: Server, hang: str) -> None:
    prompt, cause = HANGS[hang]
    first, logged = server.wait_ready().engine(), ended_engines(server)
    with concurrent.futures.ThreadPoolExecutor(CLIENTS + 1) as pool, StallWatch(server) as watch:
        pending = [pool.submit(timed, server, endless(stream=number % 2 == 0)) for number in range(CLIENTS)]
        server.wait_for_sequences(CLIENTS)
        hung = time.monotonic()
        if prompt is None:
            first.send_signal(signal.SIGSTOP)
        else:
            pending.append(pool.submit(timed, server, {"inputs": prompt}))
        answers = [future.result() for future in pending]
        watch.wait_for_end()
    for answer, ended in answers:
        assert cause in error_of(answer)
        assert ended - hung < PREDICT_TIMEOUT, "the answer did not end with its engine"
    assert watch.stalled(cause)
    refused = [answer for answer in watch.answers if answer.status_code == 503 and cause in answer.json()["error"]]
    assert refused
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
    assert not first.is_running()
    assert len(engines(server)) == 1
    assert ended_engines(server) == logged + 1


def ended_engines(server: Server) -> int:
    """The number of engines of this server that were killed because they hung."""
    return server.log.count("engine is stalled; killing it")


def test_requests_end_at_their_deadline_if_the_engine_does_not_read(start_server: StartServer) -> None:
    """These bodies are far larger than a socket's buffer. Their requests must not wait until they can be sent."""
    server = start_server(ECHO + "option.predict_timeout=4\noption.stall_timeout=60\n")
    engine = server.engine()
    engine.suspend()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        started = time.monotonic()
        pending = [pool.submit(timed, server, endless("x" * 200_000, stream=number % 2 == 0)) for number in range(8)]
        answers = [future.result() for future in pending]
    for answer, ended in answers:
        assert answer.status_code == 504
        assert ended - started < 4 + 20, "generous for a busy machine: without the limit, requests never ended"
    engine.resume()
    server.wait_ready()
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}
    assert server.engine() == engine


def test_engine_resumes_after_a_short_stop(lasting_server: Server) -> None:
    server = lasting_server
    engine = server.wait_ready().engine()
    body = {"inputs": "x" * 60, "stream": True, "parameters": {"max_new_tokens": 60}}
    with server.invoke(body, stream=True) as answer:
        lines = answer.iter_lines()
        next(lines)
        engine.suspend()
        assert "has not run for" in wait_for_status(server, 503)["phase"]
        engine.resume()
        wait_for_status(server, 200)
        assert json.loads(list(lines)[-1])["generated_text"] == "x" * 60
    assert server.engine() == engine


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose requests end before its engine looks stalled."""
    properties = "option.predict_timeout=3\noption.stall_timeout=8\noption.echo_load_seconds=12\noption.web_workers=1\n"
    server = Server(tmp_path_factory.mktemp("hasty") / "m", ECHO + properties)
    yield server.wait_ready()
    server.stop()


def test_computing_step_is_not_killed_whatever_predict_timeout_is(hasty_server: Server) -> None:
    server = hasty_server
    engine, started = server.engine(), time.monotonic()
    answer = server.invoke({"inputs": "x WORK@2"})
    assert answer.status_code == 504
    answers = []
    while time.monotonic() - started < 11:
        answers.append(server.ping())
        time.sleep(0.2)
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert server.invoke({"inputs": "y"}, timeout=20).status_code in (200, 504)
    assert server.engine() == engine


@pytest.mark.parametrize(
    ("prompt", "call"), [("x SLEEP@2", "step"), ("x ADD@1", "add_request"), ("x ABORT@2", "abort")]
)
def test_call_that_never_returns(server: Server, prompt: str, call: str) -> None:
    first = server.wait_ready().engine()
    with concurrent.futures.ThreadPoolExecutor(1) as pool, StallWatch(server) as watch:
        if call == "abort":
            # When the client disconnects, the sequence is aborted and its place is free again.
            with server.invoke(endless(prompt, stream=True), stream=True) as answer:
                assert next(answer.iter_lines())
        else:
            pending = pool.submit(server.invoke, endless(prompt))
            assert f"of one {call}" in error_of(pending.result())
        watch.wait_for_end()
    assert watch.stalled(f"of one {call}")
    assert not first.is_running()
    assert f"of one {call}" in server.log
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}


def test_engine_is_replaced_if_every_request_times_out(hasty_server: Server) -> None:
    """Each request ends before the engine looks stalled, but their time adds up."""
    server = hasty_server.wait_ready()
    wait_until(lambda: server.invoke({"inputs": "hello"}, timeout=20).status_code == 200)
    first = server.engine()
    assert server.invoke({"inputs": "x MUTE@1"}).status_code == 504
    deadline = time.monotonic() + 60
    while not has_ended(first):
        assert time.monotonic() < deadline, "the engine was not restarted, although every request got a 504"
        assert server.invoke({"inputs": "hello"}).status_code in (500, 503, 504)
    server.wait_restarted(first)
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}


# No process is left behind


def test_stopped_engine_ends_with_the_server(
    start_server: StartServer, family: Callable[[Server], list[psutil.Process]]
) -> None:
    server = start_server(ECHO)
    processes = family(server)
    server.engine().suspend()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0
    assert still_running(processes) == []


@pytest.mark.parametrize("victim", ["arbiter", "supervisor"])
def test_stopped_engine_ends_with_a_killed_parent(
    start_server: StartServer, family: Callable[[Server], list[psutil.Process]], victim: str
) -> None:
    server = start_server(ECHO + "option.web_workers=2\n")
    # Arbiter, two web workers, supervisor, engine and watchdog. The server is ready with its first web worker.
    wait_until(lambda: len(psutil.Process(server.process.pid).children(recursive=True)) == 5)
    processes = family(server)
    server.engine().suspend()
    (server.process if victim == "arbiter" else server.supervisor()).kill()
    assert still_running(processes) == []


# Engines that do not load


def test_temporary_load_error_does_not_stop_a_server_that_has_loaded_before(lasting_server: Server) -> None:
    server = lasting_server.wait_ready()
    template = server.directory / "template.jinja"
    away = template.rename(server.directory / "away")
    server.engine().kill()
    wait_until(lambda: "it did not load" in server.log)
    away.rename(template)
    server.wait_ready()
    assert server.invoke({"inputs": "hello"}).json() == {"generated_text": "hello"}


def test_first_load_is_retried_if_memory_runs_out(start_server: StartServer) -> None:
    server = start_server(ECHO + "option.echo_fault=out_of_memory_in_load\noption.restart_limit=1\n", ready=False)
    assert server.process.wait(120) == 1
    assert (
        sum(says(line, "echo out of memory") for line in server.log.splitlines()) == 3
    )  # the supervisor says it at the end
    assert "the engine died 2 times" in server.log
