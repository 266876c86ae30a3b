"""An asynchronous `handle` answers several requests at a time in one process."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from custom_handlers import CONCURRENT, GENERATES
from facts import Said, says
from lmi_command import ended
from raw_http import connect, head
from serving import ENVIRON, Server
from waiting import wait_until


def serve(directory: Path, properties: str = "") -> Server:
    directory.mkdir()
    (directory / "model.py").write_text(CONCURRENT)
    return Server(directory, "option.async_mode=true\noption.max_rolling_batch_size=20\nmaxWorkers=1\n" + properties)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = serve(tmp_path_factory.mktemp("code") / "m")
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose requests may take three seconds."""
    server = serve(tmp_path_factory.mktemp("code") / "m", "option.predict_timeout=3\n")
    yield server.wait_ready()
    server.stop()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as executor:
        yield executor


def call(server: Server, case: str, data: str = "x", **options: Any) -> requests.Response:
    return requests.post(f"{server.url}/invocations", data, headers={"X-Case": case}, timeout=60, **options)


def pid(server: Server) -> str:
    return call(server, "pid").text


def begin(threads: ThreadPoolExecutor, server: Server, case: str, path: Path) -> Future[requests.Response]:
    """Start a call that does not return, and wait until the process works on it."""
    server.wait_for_sequences(0)
    future = threads.submit(call, server, case, str(path))
    server.wait_for_sequences(1)
    return future


def waiting_call(path: Path) -> bytes:
    """A request that waits for ever and makes two files: one when it begins, and `path` when it ends."""
    body = str(path).encode()
    return head("/invocations", "X-Case: wait", f"Content-Length: {len(body)}") + body


def test_as_many_calls_at_a_time_as_a_batch_may_have(server: Server, threads: ThreadPoolExecutor) -> None:
    answers = [threads.submit(call, server, "together", "20") for _ in range(20)]  # each waits for all others
    assert {answer.result().text for answer in answers} == {pid(server)}


def test_no_more_than_that(server: Server, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(21):
            stack.enter_context(connect(server, waiting_call(tmp_path / str(number))))
        server.wait_for_sequences(20, waiting=1)
    server.wait_for_sequences(0)


@pytest.mark.parametrize(("case", "error"), [("raise", "some text"), ("cancel", "handle raised CancelledError")])
def test_errors_end_only_their_own_request(server: Server, threads: ThreadPoolExecutor, case: str, error: str) -> None:
    before = pid(server)
    server.wait_for_sequences(0)
    others = [threads.submit(call, server, "together", "5") for _ in range(4)]
    server.wait_for_sequences(4)
    answer = call(server, case, "some text")
    assert (answer.status_code, answer.json()["error"]) == (424, error)
    assert call(server, "together", "5").text == before
    assert {other.result().text for other in others} == {before}


def test_a_call_that_waits_too_long_is_cancelled_and_costs_nobody_else(impatient: Server, tmp_path: Path) -> None:
    before = pid(impatient)
    assert call(impatient, "wait", str(tmp_path / "left")).status_code == 504
    wait_until((tmp_path / "left").exists)
    assert pid(impatient) == before


def test_a_call_whose_client_leaves_is_cancelled(server: Server, tmp_path: Path) -> None:
    with connect(server, waiting_call(tmp_path / "left")):
        wait_until((tmp_path / "left.begun").exists)
        assert not (tmp_path / "left").exists()
    wait_until((tmp_path / "left").exists)
    server.wait_for_sequences(0)


def test_a_call_that_blocks_all_others_ends_their_process(
    impatient: Server, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    before = pid(impatient)
    blocking = begin(threads, impatient, "block", tmp_path)
    time.sleep(1)  # so that the other one does not end at the same time
    other = call(impatient, "together", "2")
    assert blocking.result().status_code == 504
    assert other.status_code == 424
    assert says(other.json()["error"], "replaced option.predict_timeout 3")
    assert pid(impatient) != before


def test_generators_that_hang_leave_threads_for_others(impatient: Server, threads: ThreadPoolExecutor) -> None:
    """Nothing can interrupt them: their process is replaced."""
    before = pid(impatient)
    hanging = [threads.submit(call, impatient, "hanging generator") for _ in range(20)]
    assert all(answer.result().text.startswith("begun") for answer in hanging)
    wait_until(lambda: pid(impatient) != before)
    assert call(impatient, "generator", "5").content == b"01234"


def test_an_exit_ends_all_calls_with_the_cause(server: Server, threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    other = begin(threads, server, "wait", tmp_path / "left")
    answers = [call(server, "exit"), other.result()]
    assert [answer.json()["error"] for answer in answers] == [Said("handle ended exit status 3")] * 2
    assert call(server, "pid").status_code == 200


def test_a_fork_that_returns_does_not_answer_twice(server: Server) -> None:
    assert [call(server, "fork").text for _ in range(3)] == ["parent"] * 3
    assert call(server, "pid").status_code == 200


def test_what_the_first_call_has_started_runs_on_between_calls(server: Server) -> None:
    before = int(call(server, "ticks").text)
    wait_until(lambda: int(call(server, "ticks").text) > before + 10)


def test_a_client_that_reads_slowly_holds_up_nobody_else(server: Server, threads: ThreadPoolExecutor) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(
            b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nX-Case: flood\r\nContent-Length: 6\r\n\r\n100000"
        )
        assert slow.recv(12) == b"HTTP/1.1 200"
        answers = [threads.submit(call, server, "flood", "20") for _ in range(4)]
        assert [len(answer.result().content) for answer in answers] == [2_000_000] * 4
        pool = server.supervised("lmi_handlers.custom_code.pool")
        assert pool.memory_info().rss < 300_000_000  # it does not read 10 GB ahead
    server.wait_for_sequences(0)


def test_generators_that_are_not_asynchronous_run_beside_each_other(
    server: Server, threads: ThreadPoolExecutor
) -> None:
    answers = [threads.submit(call, server, "generator", "5") for _ in range(20)]
    assert [answer.result().content for answer in answers] == [b"01234"] * 20


def test_handle_may_be_an_asynchronous_generator(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(GENERATES)
    done = ended(
        "run", "--model-dir", str(tmp_path), "--input", "-", "-i", folder=tmp_path, environ=ENVIRON, content=b"sent"
    )
    assert (done.returncode, done.stdout) == (0, b"loadedsent")
    assert b"Content-Type: text/plain" in done.stderr.splitlines()
