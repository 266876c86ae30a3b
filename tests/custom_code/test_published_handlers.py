"""Handlers in the style of those that LMI's users publish, run unchanged; and what happens when one keeps crashing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
from custom_handlers import ARRAYS, ASYNCHRONOUS, BATCHES, CRASHES, SENTIMENT, STREAMER
from serving import Server

from lmi_handlers.custom_code import ndlist

Start = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Start]:
    """Serve a model directory: `serve(properties, model.py, other files)`."""
    servers: list[Server] = []

    def start(properties: str, script: str, files: dict[str, str] | None = None) -> Server:
        directory = tmp_path / "m"
        directory.mkdir()
        for name, text in ({"model.py": script} | (files or {})).items():
            (directory / name).write_text(text)
        servers.append(Server(directory, properties))
        return servers[0].wait_ready()

    yield start
    for server in servers:
        server.stop()


def post(server: Server, data: bytes, content_type: str = "application/json", **headers: str) -> requests.Response:
    return requests.post(
        f"{server.url}/invocations", data, headers={"Content-Type": content_type, **headers}, timeout=30
    )


def test_a_classifier_with_a_sibling_module_and_a_file(serve: Start) -> None:
    siblings = {"labels.py": "def name(good):\n    return 'POSITIVE' if good else 'NEGATIVE'\n", "settings.json": "{}"}
    server = serve("engine=Python\noption.threshold=0.4\n", SENTIMENT, siblings)
    answer = post(server, b'{"inputs": ["good day", "a bad day"]}')
    assert answer.json() == [{"label": "POSITIVE", "score": 0.5}, {"label": "NEGATIVE", "score": 0.0}]
    wrong = post(server, b'{"texts": []}')
    assert (wrong.status_code, wrong.json()["error"]) == (424, "'inputs'")


def test_arrays_and_csv(serve: Start) -> None:
    server = serve("", ARRAYS)
    array = np.array([[1.5, 2.0]], np.float32)
    (doubled,) = ndlist.decode(post(server, ndlist.encode(array), "tensor/ndlist").content)
    np.testing.assert_array_equal(doubled, array * 2)
    (doubled,) = ndlist.decode(post(server, ndlist.encode_npz([array]), "tensor/npz", Accept="tensor/npz").content)
    np.testing.assert_array_equal(doubled, array * 2)
    assert post(server, b"a,b\n1,2\n3,4\n", "text/csv").json() == {"total": [4.0, 6.0], "count": 2}


def test_a_text_iterator_streams(serve: Start) -> None:
    answer = post(serve("option.enable_streaming=true\n", STREAMER), b'{"inputs": "to be or"}')
    assert answer.headers["Content-Type"] == "application/jsonlines"
    assert [json.loads(line)["outputs"] for line in answer.content.splitlines()] == [["to "], ["be "], ["or "]]


def test_an_asynchronous_handler(serve: Start) -> None:
    assert post(serve("option.entryPoint=model.py\n", ASYNCHRONOUS), b"a b c", "text/plain").content == b"abc"


def test_dynamic_batches(serve: Start) -> None:
    server = serve("batch_size=4\nmax_batch_delay=2000\n", BATCHES)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda value: post(server, b'{"x": %d}' % value).json(), range(8)))
    assert [answer["value"] for answer in answers] == list(range(8))
    assert {(answer["batch"], answer["size"]) for answer in answers} == {(True, 4)}
    with ThreadPoolExecutor(4) as threads:
        failed = list(threads.map(lambda _: post(server, b'{"x": 1}', **{"X-Fail": "1"}), range(4)))
    assert {answer.status_code for answer in failed} == {424}
    assert {answer.json()["error"] for answer in failed} == {"one of them is bad"}
    assert post(server, b'{"x": 5}').json() == {"value": 5, "batch": True, "size": 1}


def test_a_handler_that_crashes_every_twentieth_call_fails_only_those_calls(serve: Start) -> None:
    server = serve("minWorkers=2\n", CRASHES)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda value: post(server, b"%d" % value), range(100)))
    failed = [answer for answer in answers if answer.status_code != 200]
    assert all(answer.json() == 2 * value for value, answer in enumerate(answers) if answer.status_code == 200)
    assert {answer.status_code for answer in failed} == {424}
    assert {answer.json()["error"] for answer in failed} == {
        "the process that runs handle ended with SIGABRT while it worked on this request"
    }
    assert 4 <= len(failed) <= 5  # per 20 calls of one process
