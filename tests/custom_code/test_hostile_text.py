"""Text that cannot be sent, in errors and headers of a model's own code, and signals that its processes must get."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from model_store import StoreServer

HANDLE = """
import json, multiprocessing, os
from djl_python import Input, Output

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")

{kind} handle(inputs):
    if inputs.is_empty():
        return None
    body = json.loads(inputs.get_as_string())
    if "label" in body:
        raise ValueError("unknown label " + body["label"])
    if "header" in body:
        return Output().add_property("X-Echo", body["header"]).add("ok")
    if "silent" in body:
        raise Silent
    if "pool" in body:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return Output().add(str(pool.map(abs, [-3])))
    return Output().add(str(os.getpid()))
"""
FORMATTERS = """
from djl_python.input_parser import input_formatter

@input_formatter
def read(payload, **kwargs):
    if "label" in payload:
        raise ValueError("unknown label " + payload["label"])
    return payload
"""


PROPERTIES = {
    "def": "option.predict_timeout=20\n",
    "async-def": "option.predict_timeout=20\n",
    "formatters": "option.rolling_batch=echo\n",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    files = {kind: {"model.py": HANDLE.replace("{kind}", kind.replace("-", " "))} for kind in ("def", "async-def")}
    files["formatters"] = {"model.py": FORMATTERS}
    server = StoreServer(tmp_path_factory.mktemp("hostile"), PROPERTIES, files=files)
    yield server.wait_ready()
    server.stop()


def post(server: StoreServer, model: str, body: str) -> requests.Response:
    headers = {"Content-Type": "application/json"}
    return server.ask("POST", f"/predictions/{model}", data=body, headers=headers)


@pytest.mark.parametrize("kind", ["def", "async-def"])
def test_half_characters_end_their_own_request_only(server: StoreServer, kind: str) -> None:
    process = post(server, kind, "{}").text
    failed = post(server, kind, r'{"label": "\ud800"}')
    assert (failed.status_code, r"unknown label \\ud800" in failed.text) == (424, True)
    assert post(server, kind, r'{"header": "\ud800"}').text == "ok"
    assert post(server, kind, '{"silent": 1}').status_code == 424
    assert post(server, kind, "{}").text == process, "the process is the same"
    assert post(server, kind, '{"pool": 1}').text == "[3]", "what the code starts can be ended"


def test_half_characters_do_not_end_the_formatters(server: StoreServer) -> None:
    failed = post(server, "formatters", r'{"inputs": "x", "label": "\ud800"}')
    assert (failed.status_code, r"unknown label \\ud800" in failed.text) == (424, True)
    assert post(server, "formatters", '{"inputs": "x"}').json() == {"generated_text": "x"}
    assert "formatters has ended" not in server.log
