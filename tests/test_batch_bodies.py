"""JSON-lines bodies: how they are read, and how long they may take. What they answer is in test_http.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import Server

from lmi_handlers.batch_bodies import is_batch, records


@given(st.binary(max_size=30).map(lambda data: data.replace(b"a", b"\n")))
def test_each_line_that_is_not_blank_is_a_record(data: bytes) -> None:
    lines = [line.strip() for line in data.split(b"\n") if line.strip()]
    assert list(records(data)) == lines
    assert is_batch(data) == (len(lines) > 1)


def test_lines_may_end_as_on_windows() -> None:
    assert list(records(b'{"a":1}\r\n\r\n{"b":2}\r\n')) == [b'{"a":1}', b'{"b":2}']


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One record at a time, which takes a second; a batch may take two, and its records two each in the queue."""
    properties = (
        "option.rolling_batch=echo\noption.echo_tokens_per_second=10\noption.max_rolling_batch_size=1\n"
        "job_queue_size=1\noption.batch_timeout=2\noption.max_batch_records=50\n"
    )
    server = Server(tmp_path_factory.mktemp("batch") / "m", properties)
    yield server.wait_ready()
    server.stop()


def test_what_is_not_begun_in_time_is_answered_with_an_error(server: Server) -> None:
    data = b"\n".join([json.dumps({"inputs": "abcdefghi"}).encode()] * 40)
    started = time.monotonic()
    answer = server.invoke(data=data, headers={"Content-Type": "application/jsonlines"})
    assert time.monotonic() - started < 20, "all of them would take 40 seconds"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) == 40
    answered = [line for line in lines if line == {"generated_text": "abcdefghi"}]
    late = [line for line in lines if "(option.batch_timeout)" in line.get("error", "")]
    assert answered
    assert len(answered) + len(late) == 40
    assert late[0] == {"error": "the batch was not done within 2 s (option.batch_timeout)", "code": 504}


def test_too_many_lines_are_refused(server: Server) -> None:
    answer = server.invoke(data=b"1\n" * 51, headers={"Content-Type": "application/jsonlines"})
    assert answer.status_code == 413
    assert answer.json()["error"] == "the request body has more than 50 lines (option.max_batch_records)"
