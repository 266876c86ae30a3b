"""Text that cannot be sent, in errors and headers of a model's own code, and signals that its processes must get."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from serving import Server, StartServer

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


def serve(start_server: StartServer, directory: Path, code: str, properties: str = "") -> Server:
    (directory / "m0").mkdir()
    (directory / "m0/model.py").write_text(code)
    return start_server(properties)


def post(server: Server, body: str) -> requests.Response:
    return requests.post(
        f"{server.url}/invocations", data=body, headers={"Content-Type": "application/json"}, timeout=60
    )


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_half_characters_end_their_own_request_only(start_server: StartServer, tmp_path: Path, kind: str) -> None:
    server = serve(start_server, tmp_path, HANDLE.replace("{kind}", kind), "option.predict_timeout=20\n")
    process = post(server, "{}").text
    failed = post(server, r'{"label": "\ud800"}')
    assert (failed.status_code, r"unknown label \\ud800" in failed.text) == (424, True)
    assert post(server, r'{"header": "\ud800"}').text == "ok"
    assert post(server, '{"silent": 1}').status_code == 424
    assert post(server, "{}").text == process, "the process is the same"
    assert post(server, '{"pool": 1}').text == "[3]", "what the code starts can be ended"


def test_half_characters_do_not_end_the_formatters(start_server: StartServer, tmp_path: Path) -> None:
    server = serve(start_server, tmp_path, FORMATTERS, "option.rolling_batch=echo\n")
    failed = post(server, r'{"inputs": "x", "label": "\ud800"}')
    assert (failed.status_code, r"unknown label \\ud800" in failed.text) == (424, True)
    assert post(server, '{"inputs": "x"}').json() == {"generated_text": "x"}
    assert "formatters has ended" not in server.log
