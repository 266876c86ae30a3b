"""JSON-lines bodies: how they are parsed and how long they may take. test_http.py tests the answers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import pytest
import requests
from facts import Said, says
from hypothesis import given
from hypothesis import strategies as st
from raw_http import connect, request
from serving import Server, StartServer
from waiting import wait_until

from lmi_handlers.web.batch_bodies import is_batch, records


@given(st.binary(max_size=30).map(lambda data: data.replace(b"a", b"\n")))
def test_each_non_blank_line_is_a_record(data: bytes) -> None:
    lines = [line.strip() for line in data.split(b"\n") if line.strip()]
    assert list(records(data)) == lines
    assert is_batch(data) == (len(lines) > 1)


def test_lines_may_end_in_crlf() -> None:
    assert list(records(b'{"a":1}\r\n\r\n{"b":2}\r\n')) == [b'{"a":1}', b'{"b":2}']


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes a quarter of a second per record, one at a time. A batch may take three seconds."""
    properties = (
        "option.rolling_batch=echo\noption.echo_tokens_per_second=40\noption.max_rolling_batch_size=1\n"
        "job_queue_size=1\noption.batch_timeout=3\noption.max_batch_records=50\n"
    )
    server = Server(tmp_path_factory.mktemp("batch") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_records_that_do_not_start_in_time_get_an_error(server: Server) -> None:
    """Answering all of them would take at least ten seconds."""
    data = b"\n".join([json.dumps({"inputs": "abcdefghi"}).encode()] * 40)
    answer = server.invoke(data=data, headers={"Content-Type": "application/jsonlines"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) == 40
    answered = [line for line in lines if line == {"generated_text": "abcdefghi"}]
    late = [line for line in lines if "(option.batch_timeout)" in line.get("error", "")]
    assert answered
    assert len(answered) + len(late) == 40
    assert late[0] == {"error": Said("batch not finish 3 s option.batch_timeout"), "code": 504}


def test_too_many_lines_are_rejected(server: Server) -> None:
    answer = server.invoke(data=b"1\n" * 51, headers={"Content-Type": "application/jsonlines"})
    assert answer.status_code == 413
    assert says(answer.json()["error"], "50 lines option.max_batch_records")


@pytest.fixture(scope="module")
def busy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one place in the batch and one in the queue. A request may take four seconds, a batch a minute."""
    properties = (
        "option.rolling_batch=echo\noption.echo_tokens_per_second=20\noption.max_rolling_batch_size=1\n"
        "job_queue_size=1\noption.echo_faults=true\noption.predict_timeout=4\noption.batch_timeout=60\n"
    )
    server = Server(tmp_path_factory.mktemp("busy") / "m", properties, "--workers", "1")
    yield server.wait_ready()
    server.stop()


@contextlib.contextmanager
def full_queue(server: Server) -> Iterator[None]:
    """Keeps the queue full: more clients than places, each always with a request."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            if server.invoke({"inputs": "abcdefgh"}).status_code != 200:
                time.sleep(0.02)  # a client that asks without a pause keeps the processor, too

    clients = [threading.Thread(target=ask) for _ in range(8)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        done.set()
        for client in clients:
            client.join()


def failures(server: Server, cause: str) -> float:
    lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    prefix = f'tgi_request_failure{{err="{cause}"'
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(prefix))


def test_record_may_wait_for_the_queue_longer_than_predict_timeout(busy_server: Server) -> None:
    answers: list[str] = []

    def batch() -> None:
        record = json.dumps({"inputs": "abc"}).encode()
        headers = {"Content-Type": "application/jsonlines"}
        answers.append(busy_server.invoke(data=record + b"\n" + record, headers=headers).text)

    thread = threading.Thread(target=batch)
    with full_queue(busy_server):
        time.sleep(0.5)
        thread.start()
        thread.join(6)
    thread.join()
    assert answers == ['{"generated_text": "abc"}\n' * 2]


def test_batch_that_waits_for_the_queue_ends_when_its_client_disconnects(start_server: StartServer) -> None:
    """Nothing else ends it: the requests before it never end."""
    server = start_server(
        "option.rolling_batch=echo\noption.echo_faults=true\noption.max_rolling_batch_size=1\njob_queue_size=1\n"
    )
    record = json.dumps({"inputs": "abc"}).encode()
    holder = request({"inputs": "x HANG@1"})
    with connect(server, holder):
        server.wait_for_sequences(1)
        with connect(server, holder):
            server.wait_for_sequences(1, waiting=1)
            with pytest.raises(requests.Timeout):
                server.invoke(
                    data=record + b"\n" + record, headers={"Content-Type": "application/jsonlines"}, timeout=0.5
                )
            wait_until(lambda: failures(server, "dropped") > 0)
            assert server.sequences() == (1, 1)


def test_execution_parameters_for_an_engine(server: Server) -> None:
    """One place in the batch, and the default max_request_size."""
    answer = requests.get(server.url + "/execution-parameters", timeout=60)
    assert answer.json() == {"MaxConcurrentTransforms": 1, "BatchStrategy": "MULTI_RECORD", "MaxPayloadInMB": 64}
