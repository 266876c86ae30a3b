"""More processes are started while requests have to wait, and end again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from custom_handlers import GROWS
from facts import says
from serving import Server, lmi_check
from waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("code") / "m"
    directory.mkdir()
    (directory / "model.py").write_text(GROWS)
    server = Server(directory, "minWorkers=1\nmaxWorkers=3\nmax_idle_time=1\n")
    yield server.wait_ready()
    server.stop()


def call(server: Server, seconds: float) -> requests.Response:
    return requests.post(f"{server.url}/invocations", str(seconds), timeout=60)


def test_more_processes_help_while_requests_wait_and_end_when_they_are_idle(server: Server) -> None:
    (first,) = server.code_processes()
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda _: call(server, 1.0), range(12)))
    assert {answer.status_code for answer in answers} == {200}
    pids = {int(answer.text) for answer in answers}
    assert first.pid in pids
    assert 2 <= len(pids) <= 3
    wait_until(lambda: server.code_processes() == [first])
    assert int(call(server, 0).text) == first.pid


def test_a_process_that_cannot_be_started_hurts_nobody(server: Server) -> None:
    (server.directory / "broken").touch()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: call(server, 0.5), range(8)))
    assert {answer.status_code for answer in answers} == {200}
    wait_until(lambda: "no room for another one" in server.log)
    assert server.ping().status_code == 200
    (server.directory / "broken").unlink()


def test_a_short_wait_starts_nothing(server: Server) -> None:
    wait_until(lambda: len(server.code_processes()) == 1)
    (first,) = server.code_processes()
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: call(server, 0), range(20)))
    if (
        max(answer.elapsed.total_seconds() for answer in answers) < 0.2
    ):  # otherwise the machine made one wait for longer
        assert {int(answer.text) for answer in answers} == {first.pid}


def test_fewer_at_most_than_at_least_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(GROWS)
    (tmp_path / "serving.properties").write_text("minWorkers=3\nmaxWorkers=2\n")
    checked = lmi_check(tmp_path, "--no-code")
    assert checked.returncode == 1
    assert says(checked.stderr, "maxWorkers=2 minWorkers=3")
