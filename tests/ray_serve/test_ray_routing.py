"""A real Ray with two replicas that pass requests on: sessions, equal beginnings, and what fails."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import requests
from raw_http import connect, request
from serving import Server, free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROPERTIES = "option.rolling_batch=echo\noption.session_history=true\noption.max_model_len=16384\n"
PROPERTIES += "option.echo_tokens_per_second=500\n"
SESSION = "X-Amzn-SageMaker-Session-Id"
NEW = {SESSION: "NEW_SESSION"}
"""With it, the answer names the replica."""


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory, port = tmp_path_factory.mktemp("ray") / "m", free_port()
    command = [sys.executable, "-m", "lmi_handlers.cli", "ray", "serve", "--model-dir", str(directory)]
    command += [
        "--num-cpus",
        "0.5",
        "--replicas",
        "2",
        "--routing",
        "prefix",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environ = {
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
    server = Server(directory, PROPERTIES, command=command, port=port, environ=environ)
    children: list[psutil.Process] = []
    try:
        server.wait_ready(400)  # a dozen of Ray's processes start first
        children = psutil.Process(server.process.pid).children(recursive=True)
        wait_until(
            lambda: len(replicas_of(server, b"%d" % time.monotonic_ns())) == 2, server
        )  # both have had a request
        time.sleep(2)  # and the other has heard of it
        yield server
    finally:
        if server.process.poll() is None:
            children += psutil.Process(server.process.pid).children(recursive=True)
            server.process.send_signal(signal.SIGTERM)
        server.process.wait(90)
        _, left = psutil.wait_procs(children, timeout=5)
        for child in left:  # Ray's own agents look for their parent now and then
            child.kill()


def chat(server: Server, text: str, headers: dict[str, str], max_tokens: int = 3) -> requests.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return requests.post(f"{server.url}/invocations", json=body, headers=headers, timeout=60)


def status(server: Server, text: str, headers: dict[str, str]) -> int:
    """The status of an answer, 0 if there is none: its replica has just ended."""
    try:
        return chat(server, text, headers).status_code
    except requests.ConnectionError:
        return 0


def replicas_of(server: Server, text: bytes, number: int = 8) -> Counter[str]:
    """The replicas that answer requests with this text."""
    answers = [chat(server, text.decode(), NEW) for _ in range(number)]
    assert [answer.status_code for answer in answers] == [200] * number, answers[0].text
    return Counter(answer.headers[SESSION].partition(";")[0].rpartition("-")[2] for answer in answers)


def wait_until(condition: Callable[[], Any], server: Server) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, server.log
        time.sleep(0.2)


def test_each_request_of_a_session_reaches_its_replica(on_ray: Server) -> None:
    begun = [chat(on_ray, f"My number is {number}.", NEW) for number in range(12)]
    sessions = [answer.headers[SESSION].partition(";")[0] for answer in begun]
    assert len({session.rpartition("-")[2] for session in sessions}) == 2
    for number, session in enumerate(sessions):
        answer = chat(on_ray, "Which?", {SESSION: session}, max_tokens=1000)
        assert answer.status_code == 200, answer.text
        assert f"My number is {number}." in answer.text
    closed = requests.post(f"{on_ray.url}/invocations", json={"requestType": "CLOSE"}, headers={SESSION: session})
    assert closed.headers["X-Amzn-SageMaker-Closed-Session-Id"] == session
    for gone in (session, session[:-8] + "00000000", session[:-9], "another"):
        assert chat(on_ray, "Which?", {SESSION: gone}).status_code == 400


def test_equal_beginnings_go_to_one_replica(on_ray: Server) -> None:
    assert len(replicas_of(on_ray, b"short")) == 2
    found = [replicas_of(on_ray, b"%d" % number + b"x" * 1200) for number in range(12)]
    assert all(len(each) == 1 for each in found)
    assert len(set.union(*map(set, found))) == 2


def test_loading_on_one_replica_only_is_refused(on_ray: Server) -> None:
    answer = requests.post(f"{on_ray.url}/adapters", json={"name": "french", "src": "/opt/ml/adapters/french"})
    assert answer.status_code == 501
    assert "deploy it again" in answer.json()["error"]


def test_a_client_that_leaves_frees_its_place_wherever_it_is(on_ray: Server) -> None:
    for number in range(12):
        body = {"inputs": f"{number}" + "x" * 6000, "parameters": {"max_new_tokens": 6000}, "stream": True}
        with connect(on_ray, request(body, "/invocations", f"X-Request-Id: leaves-{number}")) as sock:  # for 12 seconds
            assert sock.recv(100)
        wait_until(lambda number=number: f'"request_id":"leaves-{number}"' in on_ray.log, on_ray)  # type: ignore[misc]
    lines = [line for line in on_ray.log.splitlines() if '"request_id":"leaves-' in line]
    assert len({line.partition(")")[0] for line in lines}) == 2, "some were passed on"
    assert all("ClientDisconnected" in line for line in lines)


def test_requests_are_answered_without_the_actor_that_knows_the_replicas(on_ray: Server) -> None:
    session = chat(on_ray, "My number is 7.", NEW).headers[SESSION].partition(";")[0]
    killed = processes(on_ray, "ray::Members")[0]
    killed.kill()
    for _ in range(8):
        assert "My number is 7." in chat(on_ray, "Which?", {SESSION: session}, max_tokens=1000).text
    wait_until(lambda: processes(on_ray, "ray::Members"), on_ray)
    wait_until(lambda: len(replicas_of(on_ray, b"later" + b"x" * 1200)) == 1, on_ray)


def test_a_replica_that_ends_takes_its_sessions_along_and_nothing_else(on_ray: Server) -> None:
    session = chat(on_ray, "My number is 7.", NEW).headers[SESSION].partition(";")[0]
    gone = session.rpartition("-")[2]
    keys = [b"%d" % number + b"y" * 1200 for number in range(12)]
    before = [replicas_of(on_ray, key, 2) for key in keys]
    assert {gone} < set.union(*map(set, before))
    engine, *_ = [
        each for each in processes(on_ray, "lmi_handlers.engine.process") if each.environ()["LMI_REPLICA"] == gone
    ]
    engine.parents()[1].kill()  # the server's first process
    statuses = Counter(status(on_ray, key.decode(), {}) for key in keys * 2)
    assert set(statuses) <= {0, 200, 503}
    assert statuses[200] >= 16, f"only what was on its way may have failed: {statuses}"
    assert status(on_ray, "Which?", {SESSION: session}) != 200
    wait_until(lambda: status(on_ray, "Which?", {SESSION: session}) == 400, on_ray)
    assert all(gone not in replicas_of(on_ray, key, 2) for key in keys)


def processes(server: Server, text: str) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if text in " ".join(child.cmdline())]
