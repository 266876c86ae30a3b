"""A client's empty body is a request like any other, and never looks like the first call, which has no content."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from model_store import StoreServer
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


PROPERTIES = {
    "one-by-one": "minWorkers=1\nmaxWorkers=1\n",
    "in-batches": "minWorkers=1\nmaxWorkers=1\nbatch_size=3\nmax_batch_delay=30\n",
    "script": "",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    files = {name: {"model.py": HANDLER} for name in ("one-by-one", "in-batches")}
    files["script"] = {"code/inference.py": SCRIPT}
    server = StoreServer(tmp_path_factory.mktemp("m"), PROPERTIES, files=files)
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.parametrize("method", ["POST", "POST chunked", "GET"])
@pytest.mark.parametrize("name", ["one-by-one", "in-batches"])
def test_a_handler_loads_once(server: StoreServer, name: str, content_type: str | None, method: str) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    data = iter([b""]) if method == "POST chunked" else b""
    answer = server.ask(method.split()[0], f"/predictions/{name}", data=data, headers=headers)
    if method == "GET" and answer.status_code in (404, 405):
        return
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"loads": 1, "sizes": [0]}


def test_a_script_loads_once(server: StoreServer) -> None:
    for _ in range(3):
        assert server.ask("POST", "/predictions/script", data=b"").text == "1"


def test_a_task_refuses_it_and_does_not_load_again(server: StoreServer) -> None:
    save_task_model("BertForSequenceClassification", server.store / "task")
    assert server.ask("POST", "/models?url=task").status_code == 200
    for content_type in TYPES:
        headers = {} if content_type is None else {"Content-Type": content_type}
        answer = server.ask("POST", "/predictions/task", data=b"", headers=headers)
        expected = (200,) if content_type == "text/plain" else (400, 415, 424)  # an empty text is a text
        assert answer.status_code in expected, (content_type, answer.text)
        assert answer.content
    assert server.generate("task", "a cat").status_code == 200
