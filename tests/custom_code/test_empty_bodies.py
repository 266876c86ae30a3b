"""A client's empty body is a request like any other, and never looks like the first call, which has no content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from serving import Server
from tiny_tasks import save_task_model

HANDLER = """
from djl_python import Output

loads = 0


def handle(inputs):
    global loads
    if inputs.is_empty():
        loads += 1
        return None
    batch = inputs.get_batches()
    assert not any(item.is_empty() for item in batch)
    outputs = Output()
    for index, item in enumerate(batch):
        sizes = [len(value) for value in item.get_content().get_values()]
        outputs.add({"loads": loads, "sizes": sizes}, batch_index=index if inputs.is_batch() else None)
    return outputs
"""

SCRIPT = """
loads = 0


def model_fn(model_dir):
    global loads
    loads += 1
    return loads


def predict_fn(data, model):
    return model


def input_fn(data, content_type):
    return data


def output_fn(prediction, accept):
    return str(prediction)
"""

TYPES = (None, "application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")


@pytest.fixture(scope="module", params=["one by one", "in batches"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("m")
    (directory / "model.py").write_text(HANDLER)
    batches = "batch_size=3\nmax_batch_delay=30\n" if request.param == "in batches" else ""
    started = Server(directory, f"minWorkers=1\nmaxWorkers=1\n{batches}").wait_ready()
    yield started
    started.stop()


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.parametrize("method", ["POST", "POST chunked", "GET"])
def test_a_handler_loads_once(server: Server, content_type: str | None, method: str) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    path = f"/predictions/{server.name}" if method == "GET" else "/invocations"
    data = iter([b""]) if method == "POST chunked" else b""
    answer = requests.request(method.split()[0], server.url + path, data=data, headers=headers, timeout=60)
    if method == "GET" and answer.status_code in (404, 405):
        return
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"loads": 1, "sizes": [0]}


def test_a_script_loads_once(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").write_text(SCRIPT)
    server = Server(tmp_path, "").wait_ready()
    try:
        for _ in range(3):
            assert requests.post(f"{server.url}/invocations", data=b"", timeout=60).text == "1"
    finally:
        server.stop()


def test_a_task_refuses_it_and_does_not_load_again(tmp_path: Path) -> None:
    directory = save_task_model("BertForSequenceClassification", tmp_path / "m")
    server = Server(directory, "").wait_ready()
    try:
        for content_type in TYPES:
            headers = {} if content_type is None else {"Content-Type": content_type}
            answer = requests.post(f"{server.url}/invocations", data=b"", headers=headers, timeout=60)
            expected = (200,) if content_type == "text/plain" else (400, 415, 424)  # an empty text is a text
            assert answer.status_code in expected, (content_type, answer.text)
            assert answer.content
        body = {"inputs": "a cat"}
        assert requests.post(f"{server.url}/invocations", json=body, timeout=60).status_code == 200
    finally:
        server.stop()
